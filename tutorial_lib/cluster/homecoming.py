"""What a job writes on machines that share no folder with this one comes home: while it runs, and at its end.

From each machine only what it owns, see ``starts``. Its folder there is removed when all of that is here and verified;
``python -m tutorial_lib fetch RUN`` finishes what was broken off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from tutorial_lib.cluster import manifests
from tutorial_lib.cluster.channel import Stopped, Watch
from tutorial_lib.cluster.copying import Fetched, deliver, fetch, on_all
from tutorial_lib.cluster.delivery import Delivery
from tutorial_lib.cluster.spec import Cluster, Machine
from tutorial_lib.cluster.starts import Start, command, read_starts, write_starts
from tutorial_lib.errors import JobError, TutorialError

COPY_SECONDS = 60.0  # without a byte, or any other sign of work on the other side
GIVEN = ("job.json", "ip_config.txt")  # in the folder there; this computer has its own
ENDING_SECONDS = 10.0

Say = Callable[[str], None]


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
        self._thread: threading.Thread | None = None
        self._holders: set[str] = set()

    def on_event(self, event: dict[str, Any]) -> None:
        """Hand an event on; a new checkpoint is fetched in the background, the newest where it cannot keep pace."""
        with self._lock:
            self._on_event(event)
        if event["kind"] == "checkpoint" and self._thread is not None:
            self._newest = event["epochs"]
            self._wake.set()

    def _say(self, text: str, kind: str = "copied") -> None:
        self.on_event({"kind": kind, "text": text, "time": time.time()})

    def __enter__(self) -> Homecoming:
        if self.delivery is None:
            return self
        delivery, cluster = self.delivery, self.cluster
        names = [machine.name for machine in cluster.machines]
        logs = PurePosixPath(delivery.plan.log_dir).relative_to(delivery.results)
        ssh = {name: getattr(cluster, name) for name in ("port", "username", "python") if hasattr(cluster, name)}
        machines = [(machine.name, machine.address) for machine in cluster.machines]
        text = "" if str(logs) == "." else str(logs)
        self.start = Start(delivery.results, delivery.folder, text, ssh, machines, left=names)
        self.starts = [replace(start, superseded=True) for start in read_starts(self.run)] + [self.start]
        self.run.mkdir(parents=True, exist_ok=True)
        write_starts(self.run, self.starts)
        copied = on_all(cluster.machines, self._deliver_to, self._say)
        for (name, count), files in zip(copied.items(), delivery.files, strict=True):
            if isinstance(count, TutorialError):
                with contextlib.suppress(TutorialError):  # nothing has run, there is nothing to lose
                    bring(cluster, self.start, self.run, self._say)
                write_starts(self.run, self.starts[:-1])
                raise count
            self._say(f"{name}: {count} of {len(files)} files copied, checksums verified")
        self._holders = {names[0]}
        self._thread = threading.Thread(target=self._bring_checkpoints, daemon=True)
        self._thread.start()
        return self

    def _deliver_to(self, machine: Machine, watch: Watch) -> int:
        assert self.delivery is not None
        files = self.delivery.files[self.cluster.machines.index(machine)]
        return deliver(self.cluster, machine, files, self.delivery.folder, COPY_SECONDS, watch)

    def __exit__(self, _type: type | None, error: BaseException | None, _traceback: TracebackType | None) -> None:
        if self.delivery is None:
            return
        self._end.set()
        self._wake.set()
        if self._thread is not None:
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
        if self.problems and isinstance(error, TutorialError):
            error.remedy = "\n".join([*error.remedy.splitlines(), *self.problems, self._remedy()])
        elif self.problems and error is not None:
            for text in [*self.problems, self._remedy()]:
                self._say(text, "warning")

    def _remedy(self) -> str:
        return f"{command(self.run)} brings them home when the machines can be reached again"

    def check(self) -> None:
        """After a job that ended well: raise a JobError if something is not home."""
        if self.problems:
            first, *others = self.problems
            raise JobError(f"the job ended well, but not all is home: {first}", "\n".join([*others, self._remedy()]))

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

        while True:
            holders = set(self._holders)
            chosen = [machine for machine in self.cluster.machines if machine.name in holders]
            known = _bring_from(self.cluster, chosen, self.start, self.run, wanted, stopped=self._end.is_set)
            for manifest in manifests.arrived(self.run):
                self._holders |= set(manifest.owners.values())
            if self._holders == holders:
                break
        manifests.take_over(self.run, known, known)


def _bring_from(
    cluster: Cluster,
    machines: list[Machine],
    start: Start,
    run: Path,
    wanted: Callable[[str], bool],
    stopped: Callable[[], bool],
) -> dict[str, str]:
    """Name -> SHA-256 of the wanted files that are here now; raises the first error."""

    def one(machine: Machine, watch: Watch) -> Fetched:
        own = lambda name: wanted(name) and start.owner(name) == machine.name  # noqa: E731
        return fetch(cluster, machine, start.folder, run, COPY_SECONDS, wanted=own, place=manifests.place, watch=watch)

    known = {}
    for fetched in on_all(machines, one, stopped=stopped).values():
        if isinstance(fetched, TutorialError):
            raise fetched
        known |= {name: entry[1] for name, entry in (fetched.table or {}).items()}
    return known


def bring(cluster: Cluster, start: Start, run: Path, say: Say, *, tell: bool = False) -> list[str]:
    """Bring home what a start has left on its machines; returns what could not be brought, a sentence for each machine.

    ``start.left`` loses the machines that have nothing left.

    Args:
        tell: say also what came well.
    """

    def one(machine: Machine, watch: Watch) -> Fetched:
        def wanted(name: str) -> bool:
            return (
                start.owner(name) == machine.name
                and name not in GIVEN
                and (start.in_logs(name) or not start.superseded)
            )

        options = {"wanted": wanted, "place": manifests.place, "remove": True, "watch": watch}
        fetched = fetch(cluster, machine, start.folder, run, COPY_SECONDS, **options)
        if fetched.table is None and not PurePosixPath(fetched.ancestor).is_relative_to(start.copy_to):
            raise JobError(f"copying from {machine.name}: there is no {start.copy_to}; is its disk mounted?")
        return fetched

    problems, known = [], {}
    addresses = dict(start.machines)
    machines = [machine for machine in cluster.machines if machine.name in start.left]
    for name, fetched in on_all(machines, one, say).items():
        if isinstance(fetched, TutorialError):
            where = f"{name} ({addresses[name]}) still has its results in {start.folder}"
            problems.append(f"{fetched.message}; {where}")
            continue
        start.left.remove(name)
        known |= {file: entry[1] for file, entry in (fetched.table or {}).items()}
        if fetched.table is None:
            text = "nothing was left there"
        else:
            text = f"{fetched.count} files, {fetched.size / 1e6:.1f} MB brought home, checksums verified"
            if not fetched.removed:
                problem = f"{start.folder} is still there and could not be removed"
                text, tell = f"{text}; {problem}", True
        if tell:
            say(f"{name}: {text}")
    try:
        if not start.superseded and not manifests.take_over(run, known, known, last=True) and not problems:
            say("the newest checkpoint did not come whole; the one before it is kept")
    except OSError as error:
        problems.append(f"the checkpoint that came could not be made the valid one: {error}")
    return problems


def fetch_left(run: Path, say: Say) -> list[str]:
    """Bring home everything that the starts of a run have left on machines; returns what could not be brought."""
    starts = read_starts(run)
    problems = []
    for start in starts:
        cluster = start.cluster()
        with contextlib.ExitStack() as stack:
            stack.push(cluster.__exit__)
            stack.callback(write_starts, run, starts)
            problems += bring(cluster, start, run, say, tell=True)
    return problems
