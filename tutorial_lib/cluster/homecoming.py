"""What a job writes on machines that share no folder with this one comes home: while it runs, and at its end.

From each machine comes only what it owns: its logs and its rows of embeddings, which carry its name; everything else is
the first machine's. Its folder there is removed when all of that is here and verified. What is still out there stands
in the run folder, see ``delivery``; ``python -m tutorial_lib fetch RUN`` finishes what was broken off.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tutorial_lib.cluster import manifests
from tutorial_lib.cluster.channel import Stopped, Watch
from tutorial_lib.cluster.delivery import Delivery, Start, read_starts, write_starts
from tutorial_lib.cluster.spec import Cluster, Machine
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.cluster.standing import StandingCluster
from tutorial_lib.cluster.transfer import Fetched, deliver, fetch
from tutorial_lib.errors import InputError, JobError, TutorialError

COPY_SECONDS = 60.0  # without a byte, or any other sign of work on the other side
ENDING_SECONDS = 10.0
AT_ONCE = 8

T = TypeVar("T")
Say = Callable[[str], None]


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
        self._newest, self._wake, self._end = (0, 0), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._bring_checkpoints, daemon=True)
        self._holders = {cluster.machines[0].name}

    def on_event(self, event: dict[str, Any]) -> None:
        """Hand an event on; a new checkpoint is fetched in the background, the newest where it cannot keep pace."""
        with self._lock:
            self._on_event(event)
        if event["kind"] == "checkpoint":
            self._newest = event["epochs"], event.get("step", 0)
            self._wake.set()

    def _say(self, text: str, kind: str = "copied") -> None:
        self.on_event({"kind": kind, "text": text, "time": time.time()})

    def __enter__(self) -> Homecoming:
        if self.delivery is None:
            return self
        cluster, self.start = self.cluster, self.delivery.start
        self.starts = [replace(start, superseded=True) for start in read_starts(self.run)]
        if cluster.reach is not None:  # else machines and results end with this command
            vars(self.start).update(cluster.reach)
            self.starts.append(self.start)
        self.run.mkdir(parents=True, exist_ok=True)
        write_starts(self.run, self.starts)
        files = dict(zip(self.start.left, self.delivery.files, strict=True))

        def one(machine: Machine, watch: Watch) -> int:
            return deliver(cluster, machine, files[machine.name], self.start.copy_to, COPY_SECONDS, watch)

        for name, count in on_all(cluster.machines, one, Watch(self._say)).items():
            if isinstance(count, TutorialError):
                with contextlib.suppress(TutorialError):  # nothing has run, there is nothing to lose
                    bring(cluster, self.start, self.run, self._say)
                write_starts(self.run, [start for start in self.starts if start is not self.start])
                raise count
            self._say(f"{name}: {count} of {len(files[name])} files copied, checksums verified")
        self._thread.start()
        return self

    def __exit__(self, _type: type | None, error: BaseException | None, _traceback: object) -> None:
        if self.delivery is None:
            return
        self._end.set()
        self._wake.set()
        self._thread.join(timeout=ENDING_SECONDS)
        try:
            self.problems = bring(self.cluster, self.start, self.run, self._say)
        except BaseException:  # a second Ctrl-C
            if self.cluster.reach is not None:
                self._say(f"results are still on the machines; {command(self.run)} brings them home", "warning")
            raise
        finally:
            with contextlib.suppress(OSError):  # a full disk here: the cause of the job's end is more important
                write_starts(self.run, self.starts)
        if self.problems and self.cluster.reach is not None:
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
        while self._holders != holders:
            holders = set(self._holders)
            watch = Watch(stopped=self._end.is_set)
            for fetched in _fetch_own(self.cluster, holders, self.start, self.run, wanted, watch).values():
                if isinstance(fetched, TutorialError):
                    raise fetched
            for manifest in manifests.kept(self.run, manifests.ARRIVED):
                self._holders |= {self.start.owner(name) for name in manifest.files}
        manifests.take_over(self.run)


def on_all(
    machines: Sequence[Machine], work: Callable[[Machine, Watch], T], watch: Watch
) -> dict[str, T | TutorialError]:
    """Copy to or from several machines at once, each in a thread; by name, what came of it or the error."""
    end = threading.Event()

    def one(machine: Machine) -> T | TutorialError:
        try:
            return work(machine, Watch(watch.say, lambda: end.is_set() or watch.stopped()))
        except TutorialError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return dict(zip([machine.name for machine in machines], pool.map(one, machines), strict=True))
        finally:  # Ctrl-C: the copies end within a moment
            end.set()


def _fetch_own(
    cluster: Cluster,
    names: Container[str],
    start: Start,
    run: Path,
    wanted: Callable[[str], bool],
    watch: Watch,
    *,
    remove: bool = False,
) -> dict[str, Fetched | TutorialError]:
    """The wanted files from those machines that own them, by machine; see ``on_all`` and ``transfer.fetch``."""

    def one(machine: Machine, watch: Watch) -> Fetched:
        own = lambda name: wanted(name) and start.owner(name) == machine.name  # noqa: E731
        options = {"place": manifests.place, "remove": remove, "watch": watch}
        return fetch(cluster, machine, start.folder, run, COPY_SECONDS, wanted=own, **options)

    return on_all([machine for machine in cluster.machines if machine.name in names], one, watch)


def bring(cluster: Cluster, start: Start, run: Path, say: Say) -> list[str]:
    """Bring home what a start has left on its machines; returns what could not be brought, a sentence for each machine.

    ``start.left`` loses the machines that have nothing left.
    """
    problems, addresses = [], dict(start.machines)
    found = _fetch_own(cluster, start.left, start, run, start.is_wanted, Watch(say), remove=True)
    for name, fetched in found.items():
        if isinstance(fetched, TutorialError):
            problems.append(f"{fetched.message}; {name} ({addresses[name]}) still has its results in {start.folder}")
            continue
        start.left.remove(name)
        size = sum(fetched.table[file][0] for file in fetched.needed)
        if fetched.table:
            say(f"{name}: {len(fetched.needed)} files, {size / 1e6:.1f} MB brought home, checksums verified")
        if not fetched.removed:
            say(f"{name}: {start.folder} is still there and could not be removed")
    try:
        if not start.superseded and not manifests.take_over(run, last=True) and not problems:
            say("the newest checkpoint did not come whole; the one before it is kept")
    except OSError as error:
        problems.append(f"the checkpoint that came could not be made the valid one: {error}")
    return problems


def fetch_left(run: Path, say: Say) -> list[str]:
    """Bring home everything that the starts of a run have left on machines; returns what could not be brought."""
    starts, problems = read_starts(run), []
    for start in starts:
        try:
            if start.on:
                with StandingCluster(start.on, job=False) as machines:
                    problems += bring(machines, start, run, say)
            else:  # not entered: a machine that cannot be reached is found when it is needed
                cluster = SshCluster([Machine(*machine) for machine in start.machines], **start.ssh)
                try:
                    problems += bring(cluster, start, run, say)
                finally:
                    cluster.__exit__()
        except InputError as error:
            problems.append(f"{error.message}; the results in {start.folder} have gone with their disks")
            start.left.clear()
        finally:
            write_starts(run, starts)
    return problems
