"""Faults of the soak test: how each is injected, and the report that it must cause."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from backends import SoakBackend, Ssh, find_job_processes
from progress_support import wait_until

READY_SECONDS = 90


@dataclass
class Run:
    """A running job of ``train`` (``trains``) or ``launch``."""

    backend: SoakBackend
    out: Path
    process: subprocess.Popen
    trains: bool

    def is_training(self) -> bool:
        """Whether a trainer has finished a step. Its events are on the disk of its machine."""
        for trainer in find_job_processes("trainer"):
            # KeyError: a process that calls exec has no environment for a moment
            with contextlib.suppress(OSError, psutil.Error, KeyError):
                events = Path(f"/proc/{trainer.pid}/root{trainer.environ()['TUTORIAL_LOG_DIR']}/events-0.jsonl")
                if any(f'"kind": "{kind}"' in events.read_text() for kind in ("step", "beat")):
                    return True
        return False

    def wait_until_training(self) -> None:
        wait_until(lambda: self.process.poll() is not None or self.is_training(), "its first step", READY_SECONDS)


@dataclass(frozen=True)
class Fault:
    """A fault with the report and the exit codes that are correct after it."""

    name: str
    report: str  # pattern of the cause; empty if the command is killed
    codes: tuple[int, ...] = (1,)  # correct exit codes
    inject: Callable[[Run], None] | None = None  # None: the script of the job fails
    script: tuple[str, str] | None = None  # for `launch`: fault and rank of faulty_trainer.py
    options: tuple[str, ...] = ()
    at_any_time: bool = False  # also before the job trains
    backends: tuple[str, ...] = ()  # names; empty means all


def signal_command(number: signal.Signals) -> Callable[[Run], None]:
    return lambda run: os.kill(run.backend.pid(run.process), number)


def signal_one(role: str, number: signal.Signals) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        found = find_job_processes(role)
        assert found, f"no {role} among {[p.cmdline()[:4] for p in psutil.Process().children(recursive=True)]}"
        random.choice(found).send_signal(number)

    return inject


def remove_logs(run: Run) -> None:
    shutil.rmtree(run.out / "logs" if run.trains else run.out, ignore_errors=True)


def cut_link(run: Run) -> None:
    assert isinstance(run.backend, Ssh)
    run.backend.lab.cluster.change_link(run.backend.lab.machines[1], "cut")


def kill_machine(run: Run) -> None:
    """Kill an agent with all its processes, as a restart of the machine would."""
    agent = random.choice(find_job_processes("agent"))
    for process in [agent, *agent.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


SSH, EMULATED, LOCAL = "ssh --copy_to", "emulated", "--machines 1"
WHO = r"on \S+"
KILLED = "killed by signal 9"
SAMPLER, LOOP = rf"error: sampler of trainer 0 .*{WHO}: {KILLED}", ("loop:1000000", "-")
AGENT_GONE = rf"error: agent {WHO}: the agent (was killed|ended)"
STALL = ("--stall-timeout", "6")
STILL = r"error: the job has made no progress for 6 s: {} 0 .*on \S+ is stopped"
FAULTS = [
    Fault(
        "SIGINT to the command",
        "interrupted; all started processes",
        (130,),
        signal_command(signal.SIGINT),
        at_any_time=True,
    ),
    Fault("SIGTERM to the command", r"terminated by SIGTERM", (143,), signal_command(signal.SIGTERM), at_any_time=True),
    Fault("SIGHUP to the command", r"terminated by SIGHUP", (129,), signal_command(signal.SIGHUP), at_any_time=True),
    Fault("SIGKILL to the command", "", (-9, 137), signal_command(signal.SIGKILL), at_any_time=True),
    Fault("SIGKILL to a trainer", rf"error: trainer 0 .*{WHO}: {KILLED}", inject=signal_one("trainer", signal.SIGKILL)),
    Fault("SIGKILL to a server", rf"error: server 0 {WHO}: {KILLED}", inject=signal_one("server", signal.SIGKILL)),
    Fault("SIGKILL to an agent", AGENT_GONE, inject=signal_one("agent", signal.SIGKILL)),
    Fault("SIGKILL to everything on a machine", AGENT_GONE, inject=kill_machine),
    Fault("SIGSTOP of a trainer", STILL.format("trainer"), (1,), signal_one("trainer", signal.SIGSTOP), options=STALL),
    Fault("SIGSTOP of a server", STILL.format("server"), (1,), signal_one("server", signal.SIGSTOP), options=STALL),
    Fault("the logs are deleted", r"error: .*vanished", inject=remove_logs, backends=(EMULATED, LOCAL)),
    Fault("the link is cut for good", r"error: .*machine-1", inject=cut_link, backends=(SSH,)),
    Fault("a trainer raises", r"error: trainer 0 .*ValueError: a mistake in the training loop", script=("raise", "0")),
    Fault("a trainer calls sys.exit(3)", r"error: trainer 0 .*SystemExit: 3", script=("exit", "0")),
    Fault("a trainer calls os._exit(3)", r"error: trainer 0 .*exit code 3", script=("os._exit", "0")),
    Fault("SIGKILL to a sampler", SAMPLER, (1,), signal_one("sampler", signal.SIGKILL), LOOP, ("--num_samplers", "1")),
]
