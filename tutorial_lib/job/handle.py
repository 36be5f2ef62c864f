"""Training jobs from a notebook: started in the background, watched in place, stopped with the kernel's interrupt.

    job = start_training(DataSource("synthetic-products"), Layout(emulate=2), TrainConfig(epochs=3), "runs/first")
    result = job.watch()

The job runs in a thread of this process; its machines live as long as the process: when the kernel dies, their agents
notice that the connection has ended, and stop everything.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from rich.live import Live

from tutorial_lib.cluster.coordinator import Coordinator, Event, JobFailed, Limits
from tutorial_lib.errors import attempts
from tutorial_lib.job.continuation import Continuation
from tutorial_lib.job.display import STAGES, own_console
from tutorial_lib.job.result import check_resume_folder, check_run_folder
from tutorial_lib.job.train import DataSource, Layout, run_distributed, train_on_cluster
from tutorial_lib.job.watching import JobView
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
    limits: Limits | None = None,
) -> Job:
    """Start a training job and return at once.

    Args:
        source: a data set, which is loaded and partitioned first, or a partition with as many parts as machines.
        out: run folder; must be empty or not exist yet, unless ``resume`` continues the run in it.

    Raises:
        InputError: the run folder cannot be used.
    """
    keep = Continuation(resume, checkpoint_every)
    folder = check_resume_folder(Path(out)) if resume else check_run_folder(Path(out))
    return Job(source, layout, config, folder, keep, limits)


class Job:
    """A job that runs in the background; made by ``start_training``.

    Attributes:
        out: its run folder.
        events: all events so far, as in ``events.jsonl``; see ``events``.
        lines: what the command line would have printed so far.
    """

    def __init__(
        self,
        source: DataSource | Partition,
        layout: Layout,
        config: TrainConfig,
        out: Path,
        keep: Continuation,
        limits: Limits | None,
    ) -> None:
        self.out = out
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._arguments = (source, layout, config, keep, limits)
        machines = len(layout.cluster().machines)
        self._title = f"training: {config.epochs} epochs, {machines} machine(s), {machines * layout.trainers} rank(s)"
        self._view = JobView(config.epochs)
        self._stopping = threading.Event()
        self._coordinator: Coordinator | None = None
        self._result: dict[str, Any] | None = None
        self._error: BaseException | None = None
        # A daemon: the end of the process is not held up by it, and ends the machines.
        self._thread = threading.Thread(target=self._run, name="training job", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def watch(self, *, quiet: bool = False) -> dict[str, Any]:
        """Wait for the end and return the content of ``result.json``.

        In a notebook one output is updated in place, twice a second; when the job ends, its title is left, which is
        the same in each run. On a terminal it is a line that disappears. Elsewhere, or if ``quiet``, there is none.

        Raises:
            JobFailed: with the cause. JobStopped: after ``stop``. InputError: a wrong argument.
            KeyboardInterrupt: the kernel was interrupted; the job has been stopped.
        """
        screen = _NoScreen() if quiet else _screen(self._title, self._view)
        try:
            while self._thread.is_alive():
                self._thread.join(UPDATE_SECONDS)
                screen.update()
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            screen.close()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """End the job and everything that it started; returns when that is done. Does nothing after its end.

        Raises:
            WaitedTooLong: it goes on, for example in METIS, which cannot be interrupted.
        """
        self._stopping.set()
        if self._coordinator is not None:
            self._coordinator.cancel(self._stopped())
        remedy = "Restart the kernel: everything that the job has started ends with it."
        for left in attempts(f"the job in {self.out} to end", STOP_SECONDS, pause=0, remedy=remedy):
            self._thread.join(min(left, UPDATE_SECONDS))
            if not self.running:
                return

    def _run(self) -> None:
        source, layout, config, keep, limits = self._arguments
        try:
            if isinstance(source, Partition):
                self._result = train_on_cluster(
                    source,
                    layout.cluster(),
                    layout,
                    config,
                    self.out,
                    limits=limits,
                    reporter=self,
                    keep=keep,
                    on_start=self._started,
                )
            else:
                self._result = run_distributed(
                    source, layout, config, self.out, self, keep, limits=limits, on_start=self._started
                )
        except BaseException as error:  # raised again by watch, in the caller's thread
            self._error = error

    def _started(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._check_stop()

    def say(self, text: str) -> None:
        """Part of being the run's reporter."""
        self.lines.append(text)
        self._view.wait_for(text)
        self._check_stop()

    def on_event(self, event: Event) -> None:
        """Part of being the run's reporter."""
        self.events.append(event)
        if event["kind"] == "stage":
            self._view.wait_for(STAGES[event["stage"]])
        self._view.on_event(event)
        self._check_stop()

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise self._stopped()

    def _stopped(self) -> JobStopped:
        log = self.out / "events.jsonl"
        return JobStopped("the job was stopped", machine="", role="", index=0, rank=None, log=log, tail=[])


class _NoScreen:
    """Shows nothing."""

    def update(self) -> None:
        """Called now and then."""

    def close(self) -> None:
        """Called at the end."""


class _Notebook(_NoScreen):
    """One output of a cell, replaced in place. First and last it is the title alone: nbval, which ignores
    replacements, and a saved notebook see the same.
    """

    def __init__(self, title: str, view: JobView) -> None:
        from IPython.display import display

        self.title, self.view = title, view
        self.handle = display(self._bundle(title), raw=True, display_id=True)
        self.shown = title

    def _bundle(self, text: str) -> dict[str, str]:
        return {"text/plain": text}

    def _show(self, text: str) -> None:
        if text != self.shown:
            self.handle.update(self._bundle(text), raw=True)
            self.shown = text

    def update(self) -> None:
        self._show(f"{self.title}\n{self.view.text()}")

    def close(self) -> None:
        self._show(self.title)


class _Terminal(_NoScreen):
    """Lines that are redrawn and disappear at the end."""

    def __init__(self, view: JobView) -> None:
        self.live = Live(view, console=own_console(), refresh_per_second=2, transient=True)
        self.live.start()

    def close(self) -> None:
        self.live.stop()


def _screen(title: str, view: JobView) -> _NoScreen:
    """What this process can show on."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        return _Notebook(title, view)
    return _Terminal(view) if sys.stdout.isatty() else _NoScreen()
