"""What a job writes on machines that share no folder with this one comes home: while it runs, and at its end.

What is still out there stands in ``delivery.json`` in the run folder, one entry for each start of the run. From each
machine comes only what it owns: its logs and its rows of embeddings, which carry its name; everything else is the first
machine's. Its folder there is removed when all of that is here and verified; ``python -m tutorial_lib fetch RUN``
finishes what was broken off.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from tutorial_lib.cluster import manifests
from tutorial_lib.cluster.channel import Stopped, Watch
from tutorial_lib.cluster.copying import Fetched, deliver, fetch, on_all
from tutorial_lib.cluster.delivery import Delivery
from tutorial_lib.cluster.spec import Cluster, Machine
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.errors import InputError, JobError, TutorialError
from tutorial_lib.files import write_json

LIST = "delivery.json"
COPY_SECONDS = 60.0  # without a byte, or any other sign of work on the other side
GIVEN = ("job.json", "ip_config.txt")  # in the folder there; this computer has its own
ENDING_SECONDS = 10.0

Say = Callable[[str], None]


@dataclass
class Start:
    """One start of a job: where its results are, and on which machines they still are.

    Attributes:
        folder: on the machines, for the results of this start alone.
        copy_to: the folder above it that the user named.
        logs: below ``folder``, where each machine has a folder of its name; may be empty.
        ssh: arguments of ``SshCluster``.
        machines: name and address of each, the first one first.
        left: names of the machines from which not everything has come yet.
        superseded: a later start continued the run; of this one only the logs are of use.
    """

    folder: str
    copy_to: str
    logs: str
    ssh: dict[str, Any]
    machines: list[tuple[str, str]]
    left: list[str] = field(default_factory=list)
    superseded: bool = False

    def owner(self, name: str) -> str:
        """The machine that a file below ``folder`` is to come from."""
        path = PurePosixPath(name)
        for machine, _address in self.machines:
            in_logs = path.is_relative_to(PurePosixPath(self.logs, machine))
            if in_logs or path.name == f"embeddings-{machine}.safetensors":
                return machine
        return self.machines[0][0]

    def is_wanted(self, name: str) -> bool:
        """Whether a file is to come home: of a start that was continued nothing that the later one has written anew."""
        return name not in GIVEN and (not self.superseded or PurePosixPath(name).is_relative_to(self.logs))


def read_starts(run: Path) -> list[Start]:
    """Those of a run folder that have something left; none for a run whose machines shared it.

    Raises:
        InputError: the list cannot be read.
    """
    try:
        return [Start(**fields) for fields in json.loads((run / LIST).read_text())["starts"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run / LIST} cannot be read: {error}") from None


def write_starts(run: Path, starts: list[Start]) -> None:
    """Those that have something left."""
    write_json(run / LIST, {"starts": [asdict(start) for start in starts if start.left]})


def command(run: Path) -> str:
    """What the user can do."""
    return f"python -m tutorial_lib fetch {shlex.quote(str(run))}"


class Homecoming:
    """``with Homecoming(cluster, delivery, run, on_event) as home: Coordinator(..., home.on_event).run()``.

    Entering copies to the machines; leaving brings home what is there, however the job ended. A failed job keeps its
    cause, with what could not be fetched as its remedy. After one that ended well, ``check`` raises.

    Args:
        cluster: entered; ``delivery`` None: the machines share the run folder, and nothing is copied.
        run: the run folder, which gets everything.
        on_event: takes the events of the job, see ``launch``; of one thread at a time.
    """

    def __init__(
        self, cluster: Cluster, delivery: Delivery | None, run: Path, on_event: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cluster, self.delivery, self.run = cluster, delivery, run
        self.remote = delivery.plan if delivery else None
        self.problems: list[str] = []
        self._on_event, self._lock = on_event, threading.Lock()
        self._newest, self._wake, self._end = 0, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._bring_checkpoints, daemon=True)
        self._holders = {cluster.machines[0].name}

    def on_event(self, event: dict[str, Any]) -> None:
        """Hand an event on; a new checkpoint is fetched in the background, the newest where it cannot keep pace."""
        with self._lock:
            self._on_event(event)
        if event["kind"] == "checkpoint":
            self._newest = event["epochs"]
            self._wake.set()

    def _say(self, text: str, kind: str = "copied") -> None:
        self.on_event({"kind": kind, "text": text, "time": time.time()})

    def __enter__(self) -> Homecoming:
        if self.delivery is None:
            return self
        delivery, cluster = self.delivery, self.cluster
        ssh = {name: getattr(cluster, name) for name in ("port", "username", "python") if hasattr(cluster, name)}
        machines = [(machine.name, machine.address) for machine in cluster.machines]
        logs = str(PurePosixPath(delivery.plan.log_dir).relative_to(delivery.results))
        left = [machine.name for machine in cluster.machines]
        self.start = Start(delivery.results, delivery.folder, "" if logs == "." else logs, ssh, machines, left)
        self.starts = [replace(start, superseded=True) for start in read_starts(self.run)] + [self.start]
        self.run.mkdir(parents=True, exist_ok=True)
        write_starts(self.run, self.starts)
        files = {machine.name: files for machine, files in zip(cluster.machines, delivery.files, strict=True)}

        def one(machine: Machine, watch: Watch) -> int:
            return deliver(cluster, machine, files[machine.name], delivery.folder, COPY_SECONDS, watch)

        for name, count in on_all(cluster.machines, one, self._say).items():
            if isinstance(count, TutorialError):
                with contextlib.suppress(TutorialError):  # nothing has run, there is nothing to lose
                    bring(cluster, self.start, self.run, self._say)
                write_starts(self.run, self.starts[:-1])
                raise count
            self._say(f"{name}: {count} of {len(files[name])} files copied, checksums verified")
        self._thread.start()
        return self

    def __exit__(self, _type: type | None, error: BaseException | None, _traceback: TracebackType | None) -> None:
        if self.delivery is None:
            return
        self._end.set()
        self._wake.set()
        self._thread.join(timeout=ENDING_SECONDS)
        done = False
        try:
            self.problems = bring(self.cluster, self.start, self.run, self._say)
            done = True
        finally:
            with contextlib.suppress(OSError):  # a full disk here: the cause of the job's end is more important
                write_starts(self.run, self.starts)
            if not done:  # a second Ctrl-C
                self._say(f"results are still on the machines; {command(self.run)} brings them home", "warning")
        if self.problems:
            self.problems.append(f"{command(self.run)} brings them home when the machines can be reached again")
        if isinstance(error, TutorialError):
            error.remedy = "\n".join([*error.remedy.splitlines(), *self.problems])
        elif error is not None:
            for text in self.problems:
                self._say(text, "warning")

    def check(self) -> None:
        """After a job that ended well: raise a JobError if something is not home."""
        if self.problems:
            first, *others = self.problems
            raise JobError(f"the job ended well, but not all is home: {first}", "\n".join(others))

    def _bring_checkpoints(self) -> None:
        warned = False
        while self._wake.wait() and not self._end.is_set():
            self._wake.clear()
            try:
                self._bring_checkpoint()
            except Stopped:
                return
            except (TutorialError, OSError) as error:
                if not warned:
                    self._say(f"a checkpoint did not come home, training goes on: {error}", "warning")
                warned = True

    def _bring_checkpoint(self) -> None:
        """The manifests with their files from the first machine, rows of embeddings from the machines that hold some.

        The trainers go on: of what there is when a machine answers, what they have reported is complete, and the two
        newest of that are kept there long enough to be opened.
        """

        def wanted(name: str) -> bool:
            number = manifests.number(name)
            return (number is not None and number <= self._newest) or manifests.place(name) != name

        holders: set[str] = set()
        known: dict[str, str] = {}
        while self._holders != holders:
            holders = set(self._holders)
            machines = [machine for machine in self.cluster.machines if machine.name in holders]
            found = _fetch_own(self.cluster, machines, self.start, self.run, wanted, stopped=self._end.is_set)
            for fetched in found.values():
                if isinstance(fetched, TutorialError):
                    raise fetched
                known |= fetched.checksums
            for manifest in manifests.arrived(self.run):
                self._holders |= set(manifest.owners.values())
        manifests.take_over(self.run, known)


def _fetch_own(
    cluster: Cluster,
    machines: Sequence[Machine],
    start: Start,
    run: Path,
    wanted: Callable[[str], bool],
    *,
    remove: bool = False,
    say: Say = lambda _text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Fetched | TutorialError]:
    """The wanted files from the machines that own them, by machine; see ``copying.fetch`` and ``on_all``."""

    def one(machine: Machine, watch: Watch) -> Fetched:
        options = {"place": manifests.place, "remove": remove, "watch": watch}
        own = lambda name: wanted(name) and start.owner(name) == machine.name  # noqa: E731
        fetched = fetch(cluster, machine, start.folder, run, COPY_SECONDS, wanted=own, **options)
        if fetched.table is None and not PurePosixPath(fetched.ancestor).is_relative_to(start.copy_to):
            raise JobError(f"copying from {machine.name}: there is no {start.copy_to}; is its disk mounted?")
        return fetched

    return on_all(machines, one, say, stopped)


def bring(cluster: Cluster, start: Start, run: Path, say: Say, *, tell: bool = False) -> list[str]:
    """Bring home what a start has left on its machines; returns what could not be brought, a sentence for each machine.

    ``start.left`` loses the machines that have nothing left.

    Args:
        tell: say also what came well.
    """
    problems, known, addresses = [], {}, dict(start.machines)
    machines = [machine for machine in cluster.machines if machine.name in start.left]
    for name, fetched in _fetch_own(cluster, machines, start, run, start.is_wanted, remove=True, say=say).items():
        if isinstance(fetched, TutorialError):
            where = f"{name} ({addresses[name]}) still has its results in {start.folder}"
            problems.append(f"{fetched.message}; {where}")
            continue
        start.left.remove(name)
        known |= fetched.checksums
        text = f"{fetched.count} files, {fetched.size / 1e6:.1f} MB brought home, checksums verified"
        if fetched.table is None:
            text = "nothing was left there"
        elif not fetched.removed:
            text += f"; {start.folder} is still there and could not be removed"
        if tell or not (fetched.removed or fetched.table is None):
            say(f"{name}: {text}")
    try:
        if not start.superseded and not manifests.take_over(run, known, last=True) and not problems:
            say("the newest checkpoint did not come whole; the one before it is kept")
    except OSError as error:
        problems.append(f"the checkpoint that came could not be made the valid one: {error}")
    return problems


def fetch_left(run: Path, say: Say) -> list[str]:
    """Bring home everything that the starts of a run have left on machines; returns what could not be brought."""
    starts, problems = read_starts(run), []
    for start in starts:
        # Not entered: a machine that cannot be reached is found when it is needed.
        cluster = SshCluster([Machine(*machine) for machine in start.machines], **start.ssh)
        with contextlib.ExitStack() as stack:
            stack.push(cluster.__exit__)
            stack.callback(write_starts, run, starts)
            problems += bring(cluster, start, run, say, tell=True)
    return problems
