"""Training jobs from a notebook: started in the background, watched in place, stopped with the kernel's interrupt.

    job = start_training(DataSource("synthetic-products"), Layout(emulate=2), TrainConfig(epochs=3), "runs/first")
    result = job.watch()

The job runs in a thread of this process; its machines live as long as the process: when the kernel dies, their agents
notice that the connection has ended, and stop everything.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live

from tutorial_lib.cluster.coordinator import Coordinator, Event, JobFailed
from tutorial_lib.errors import attempts
from tutorial_lib.job.display import Reporter, own_console
from tutorial_lib.job.folder import Continuation
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.timeline import Timeline
from tutorial_lib.job.train import run_distributed
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.config import TrainConfig

UPDATE_SECONDS = 0.5
STOP_SECONDS = 600.0  # a large graph is being cut; a job that runs ends within seconds


class JobStopped(JobFailed):
    """The job was ended by ``Job.stop`` or by an interrupt; what it has saved can be continued."""


def start_training(
    source: DataSource | Partition,
    layout: Layout,
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    checkpoint_every: int = 1,
) -> Job:
    """Start a training job and return at once.

    Args:
        source, layout, config: as in ``run_distributed``.
        out: run folder; must be empty or not exist yet, unless ``resume`` continues the run in it.

    Raises:
        InputError: the run folder cannot be used.
    """
    keep = Continuation(resume, checkpoint_every)
    return Job(source, layout, config, keep.folder(Path(out)), keep)


class Job(Reporter):
    """A job that runs in the background, made by ``start_training``, and the reporter that the run tells how far it is.

    Attributes:
        out: its run folder.
        events: all events so far, as in ``events.jsonl``; see ``events``.
        lines: what the command line would have printed so far, less the times.
    """

    def __init__(
        self, source: DataSource | Partition, layout: Layout, config: TrainConfig, out: Path, keep: Continuation
    ) -> None:
        super().__init__()
        self.out = out
        self.events: list[Event] = []
        self.lines: list[str] = []
        machines = len(layout.cluster().machines)
        ranks = f"{machines} machine(s), {machines * layout.trainers} rank(s)"
        self._title = f"training: {config.epochs} epochs, {ranks}"
        self._stopped: JobStopped | None = None  # by ``stop``
        self._coordinator: Coordinator | None = None
        self._end: Future[dict[str, Any]] = Future()

        def run() -> None:
            try:
                self._end.set_result(run_distributed(source, layout, config, out, self, keep))
            except BaseException as error:  # raised again by watch, in the caller's thread
                self._end.set_exception(error)

        # A daemon: the end of the process is not held up by it, and ends the machines.
        threading.Thread(target=run, name="training job", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._end.done()

    def watch(self, *, quiet: bool = False) -> dict[str, Any]:
        """Wait for the end and return the content of ``result.json``.

        In a notebook one output is updated in place, twice a second; when the job ends, its title is left, which is
        the same in each run. On a terminal it is a line that disappears. Elsewhere, or if ``quiet``, there is none.

        Raises:
            JobFailed: with the cause. JobStopped: after ``stop``. InputError: a wrong argument.
            KeyboardInterrupt: the kernel was interrupted; the job has been stopped.
        """
        try:
            with _screen(self._title, self, quiet=quiet) as update:
                while self.running:
                    wait([self._end], UPDATE_SECONDS)
                    update()
        except KeyboardInterrupt:
            self.stop()
            raise
        return self._end.result()

    def timeline(self) -> Timeline:
        """What was done when, so far; below a cell it is a picture. The job may be running.

        Raises:
            InputError: no event has come yet.
        """
        return Timeline.of(self.out)

    def stop(self) -> None:
        """End the job and everything that it started; returns when that is done. Does nothing after its end.

        Raises:
            WaitedTooLong: it goes on, for example in METIS, which cannot be interrupted.
        """
        log = self.out / "events.jsonl"
        self._stopped = JobStopped("the job was stopped", machine="", role="", index=0, rank=None, log=log, tail=[])
        if self._coordinator is not None:
            self._coordinator.cancel(self._stopped)
        remedy = "Restart the kernel: everything that the job has started ends with it."
        for left in attempts(f"the job in {self.out} to end", STOP_SECONDS, pause=0, remedy=remedy):
            wait([self._end], min(left, UPDATE_SECONDS))
            if not self.running:
                return

    def started(self, coordinator: Coordinator) -> None:
        """Part of being the run's reporter: from now on the job can be stopped in the middle of a wait."""
        self._check_stop()
        self._coordinator = coordinator
        if self._stopped is not None:  # in this very moment
            coordinator.cancel(self._stopped)

    def say(self, text: str, waiting: str = "") -> None:
        """Part of being the run's reporter."""
        self.lines.append(text)
        super().say(text, waiting)
        self._check_stop()

    def on_event(self, event: Event) -> None:
        """Part of being the run's reporter."""
        self.events.append(event)
        super().on_event(event)
        self._check_stop()

    def _check_stop(self) -> None:
        if self._stopped is not None and self._coordinator is None:  # which otherwise writes down that it was stopped
            raise self._stopped


@contextmanager
def _screen(title: str, view: Reporter, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """What this process can show on: an output of a cell, lines of a terminal, or nothing.

    The output of a cell is replaced in place. First and last it is the title alone: nbval, which ignores replacements,
    and a saved notebook see the same. The lines of a terminal are redrawn and disappear at the end.
    """
    ipython = sys.modules.get("IPython")
    if not quiet and ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        handle = ipython.display.display({"text/plain": title}, raw=True, display_id=True)
        shown = title

        def show(text: str) -> None:
            nonlocal shown
            if text != shown:
                handle.update({"text/plain": text}, raw=True)
                shown = text

        try:
            yield lambda: show(f"{title}\n{view.text()}")
        finally:
            show(title)
    elif not quiet and sys.stdout.isatty():
        with Live(view, console=own_console(), refresh_per_second=2, transient=True):
            yield lambda: None
    else:
        yield lambda: None
