"""The process that keeps emulated machines, see ``standing``: ``python -m tutorial_lib.cluster.keeper SETTINGS``."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import selectors
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from tutorial_lib.cluster.addresses import socket_name, user_of
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.standing import ANSWER_SECONDS, LARGEST_MESSAGE, Standing
from tutorial_lib.errors import InputError, TutorialError


class Keeper:
    """Holds machines and answers on their socket; ``settings`` are those that ``standing.start`` writes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name, self.started, self.settings = settings["name"], time.time(), settings
        self.ends = self.started + settings["ttl"]
        options = {"wire": settings["wire"], "shm_bytes": settings["shm"], "own_disks": settings["own_disks"]}
        self.cluster = EmulatedCluster(settings["count"], **options)
        self.wires = dict.fromkeys((m.name for m in self.cluster.machines), settings["wire"])
        self.cut: set[str] = set()
        self.jobs: dict[socket.socket, str | None] = {}  # of each connection, the job that it stands for
        self.selector = selectors.DefaultSelector()  # with what to call when there is something
        self.stopping = False
        self.ssh_config: str | None = None

    def run(self) -> None:
        """Set up, say so on standard output, and serve to the end."""
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            try:
                listener.bind(socket_name(self.name))
            except OSError:
                raise InputError(f"machines named {self.name!r} have just been started by another command") from None
            stack.enter_context(self.cluster)
            if self.settings["ssh"]:
                from tutorial_lib.cluster.ssh_servers import ssh_servers

                self.ssh_config = stack.enter_context(ssh_servers(self.cluster, self.name))
            if self.settings["slurm"]:
                from tutorial_lib.cluster.slurm_servers import slurm_servers

                stack.enter_context(slurm_servers(self.cluster, self.name))
            listener.listen()
            self.selector.register(listener, selectors.EVENT_READ, lambda: self._welcome(*listener.accept()))
            gone = lambda: self._stop("their first process was killed")  # noqa: E731
            self.selector.register(self.cluster.life_line(), selectors.EVENT_READ, gone)
            print(json.dumps(asdict(self.describe())), flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            while not self.stopping and time.time() < self.ends:
                for key, _events in self.selector.select(min(1.0, max(0.0, self.ends - time.time()))):
                    key.data()
            self._stop("their --ttl was over")

    def _stop(self, why: str) -> None:
        """Leave, and first tell the jobs on the machines."""
        for connection in (other for other, job in self.jobs.items() if job and not self.stopping):
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"gone": why}).encode())
        self.stopping = True

    def leave(self) -> None:
        """On a signal: unwind, so that the machines are switched off."""
        self._stop("their keeper was told to end")
        sys.exit(0)

    def _welcome(self, connection: socket.socket, _address: object) -> None:
        if user_of(connection) != os.getuid():
            connection.close()
            return
        connection.settimeout(ANSWER_SECONDS)
        self.jobs[connection] = None
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if message := connection.recv(LARGEST_MESSAGE):
                self._answer(connection, json.loads(message))
                return
        self.selector.unregister(connection)
        del self.jobs[connection]
        connection.close()

    def _answer(self, connection: socket.socket, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"ok": True}
        try:
            if message["do"] == "describe":
                answer = asdict(self.describe())
            elif message["do"] == "namespaces":
                answer = {"machines": len(self.cluster.machines)}
            elif message["do"] == "use":
                self._use(connection, message["who"])
            elif message["do"] == "stop":
                self._stop("machines stop was called")
            else:
                self._cable(message["do"], message["machine"], message.get("rate"))
        except InputError as error:
            answer = {"error": error.message, "remedy": error.remedy}
        except OSError as error:
            answer = {"error": f"the machines {self.name!r}: {error.strerror}"}
        connection.sendall(json.dumps(answer).encode())
        if message["do"] == "namespaces":
            for fds in self.cluster.namespaces():
                socket.send_fds(connection, [b"n"], fds)

    def _use(self, connection: socket.socket, who: str) -> None:
        if user := next((job for other, job in self.jobs.items() if job and other is not connection), None):
            remedy = "Wait for its end, or start other machines: python -m tutorial_lib machines start 2 --name other"
            raise InputError(f"the machines {self.name!r} are used by {user}", remedy)
        self.jobs[connection] = who

    def _cable(self, verb: str, name: str, rate: str | None) -> None:
        machine = self.cluster.machine(name)
        if verb == "wire":
            self.cluster.set_wire(machine, rate)
            self.wires[name] = None if rate == "unshaped" else rate
        elif verb in ("cut", "mend"):
            (self.cluster.cut if verb == "cut" else self.cluster.mend)(machine)
            (self.cut.add if verb == "cut" else self.cut.discard)(name)

    def describe(self) -> Standing:
        """For whoever asks."""
        machines = self.cluster.machines
        return Standing(
            name=self.name,
            machines=[m.name for m in machines],
            addresses=[m.address for m in machines],
            wires=[self.wires[m.name] for m in machines],
            cut=sorted(self.cut),
            started=self.started,
            ends=self.ends,
            user=_user(),
            pid=os.getpid(),
            job=next(filter(None, self.jobs.values()), None),
            ssh_config=self.ssh_config,
            own_disks=bool(self.cluster.separate),
        )


def _user() -> str:
    with contextlib.suppress(KeyError):  # a container's user may have no name
        return pwd.getpwuid(os.getuid()).pw_name
    return f"user {os.getuid()}"


def main() -> None:
    """Keep the machines to their end; what goes wrong before they are there is a line of JSON."""
    try:
        keeper = Keeper(json.loads(sys.argv[1]))
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: keeper.leave())
        keeper.run()
    except Exception as error:
        known = isinstance(error, TutorialError)
        message = error.message if known else f"the keeper of the machines: {type(error).__name__}: {error}"
        print(json.dumps({"error": message, "remedy": error.remedy if known else ""}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
