"""The faults of the soak: what is done to a job, and what its report must say."""

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
from progress_support import wait_until
from ways import Ssh, Way, members

READY_SECONDS = 90


@dataclass
class Run:
    """A job that runs; ``trains`` tells ``train`` from ``launch``."""

    way: Way
    out: Path
    process: subprocess.Popen
    trains: bool

    def moving(self) -> bool:
        """Whether a trainer of it has begun to train; its events lie on the disk of its machine."""
        for trainer in members("trainer"):
            # KeyError: a process that calls exec has no environment for a moment
            with contextlib.suppress(OSError, psutil.Error, KeyError):
                events = Path(f"/proc/{trainer.pid}/root{trainer.environ()['TUTORIAL_LOG_DIR']}/events-0.jsonl")
                if any(f'"kind": "{kind}"' in events.read_text() for kind in ("step", "beat")):
                    return True
        return False

    def wait_until_moving(self) -> None:
        wait_until(lambda: self.process.poll() is not None or self.moving(), "its first step", READY_SECONDS)


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    name: str
    report: str  # pattern of the line that names the cause; empty where the command itself is killed
    codes: tuple[int, ...] = (1,)  # exit codes that are right
    inject: Callable[[Run], None] | None = None  # None: the job does it to itself
    script: tuple[str, str] | None = None  # for `launch`: fault and rank of faulty_trainer.py; None runs `train`
    options: tuple[str, ...] = ()
    at_once: bool = False  # it may come at any moment from the start, not only while the job trains
    ways: tuple[str, ...] = ()  # names of the ways that it can be done on; empty: all


def to_the_command(number: signal.Signals) -> Callable[[Run], None]:
    return lambda run: os.kill(run.way.pid(run.process), number)


def to_a(role: str, number: signal.Signals) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        found = members(role)
        assert found, f"no {role} among {[p.cmdline()[:4] for p in psutil.Process().children(recursive=True)]}"
        random.choice(found).send_signal(number)

    return inject


def remove_the_logs(run: Run) -> None:
    shutil.rmtree(run.out / "logs" if run.trains else run.out, ignore_errors=True)


def cut_the_wire(run: Run) -> None:
    assert isinstance(run.way, Ssh)
    run.way.lab.cluster.change_link(run.way.lab.machines[1], "cut")


def kill_all_of_a_machine(run: Run) -> None:
    """Everything that an agent has started, and the agent: as if somebody had switched the machine off and on."""
    agent = random.choice(members("agent"))
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
        to_the_command(signal.SIGINT),
        at_once=True,
    ),
    Fault("SIGTERM to the command", r"terminated by SIGTERM", (143,), to_the_command(signal.SIGTERM), at_once=True),
    Fault("SIGHUP to the command", r"terminated by SIGHUP", (129,), to_the_command(signal.SIGHUP), at_once=True),
    Fault("SIGKILL to the command", "", (-9, 137), to_the_command(signal.SIGKILL), at_once=True),
    Fault("SIGKILL to a trainer", rf"error: trainer 0 .*{WHO}: {KILLED}", inject=to_a("trainer", signal.SIGKILL)),
    Fault("SIGKILL to a server", rf"error: server 0 {WHO}: {KILLED}", inject=to_a("server", signal.SIGKILL)),
    Fault("SIGKILL to an agent", AGENT_GONE, inject=to_a("agent", signal.SIGKILL)),
    Fault("SIGKILL to everything on a machine", AGENT_GONE, inject=kill_all_of_a_machine),
    Fault("SIGSTOP of a trainer", STILL.format("trainer"), (1,), to_a("trainer", signal.SIGSTOP), options=STALL),
    Fault("SIGSTOP of a server", STILL.format("server"), (1,), to_a("server", signal.SIGSTOP), options=STALL),
    Fault("the logs are deleted", r"error: .*vanished", inject=remove_the_logs, ways=(EMULATED, LOCAL)),
    Fault("the wire is cut for good", r"error: .*machine-1", inject=cut_the_wire, ways=(SSH,)),
    Fault("a trainer raises", r"error: trainer 0 .*ValueError: a mistake in the training loop", script=("raise", "0")),
    Fault("a trainer calls sys.exit(3)", r"error: trainer 0 .*SystemExit: 3", script=("exit", "0")),
    Fault("a trainer calls os._exit(3)", r"error: trainer 0 .*exit code 3", script=("os._exit", "0")),
    Fault("SIGKILL to a sampler", SAMPLER, (1,), to_a("sampler", signal.SIGKILL), LOOP, ("--num_samplers", "1")),
]
