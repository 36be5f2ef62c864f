"""Lesson 9, in the notebook: processes that are started by hand, what they are asked, and what a machine shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from support.lessons import attempts
from support.lessons.machines import ask, start_machines  # noqa: F401  the second for the notebook
from tutorial_lib.cluster.emulated import MASTER_PORT, EmulatedCluster
from tutorial_lib.cluster.plan import JobPlan, server_env, torchrun_command, trainer_env
from tutorial_lib.cluster.spec import Machine, write_ip_config
from tutorial_lib.partition import Partition

LIMIT_SECONDS = 120.0
POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5  # to look costs a new process on each machine
SCRIPT = [sys.executable, "-m", "support.lessons.anatomy_script"]
LOOK = [sys.executable, "-m", "support.lessons.look_around"]


def make_plan(machines: Sequence[Machine], partition: Partition, folder: Path, **more: Any) -> JobPlan:
    """The plan of a job of ``anatomy_script.py``, with its address file and its logs in ``folder``."""
    folder.mkdir(exist_ok=True)
    write_ip_config(folder / "ip_config.txt", machines)
    return JobPlan(
        machines=machines,
        command=SCRIPT,
        part_config=str(partition.config),
        ip_config=str(folder / "ip_config.txt"),
        log_dir=str(folder / "logs"),
        cwd=str(folder),
        master_port=MASTER_PORT,
        env={"LESSON_FOLDER": str(folder), "LESSON_GRAPH": partition.graph_name},
        **more,
    )


class HandMade:
    """The processes of a job, started one at a time on machines that run."""

    def __init__(self, cluster: EmulatedCluster, plan: JobPlan) -> None:
        self.cluster, self.plan = cluster, plan
        self.started: dict[tuple[int, str], subprocess.Popen] = {}
        self._asked = 0

    def start(self, index: int, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a process on machine ``index``. What it writes goes to a log named after it."""
        folder = self.plan.log_folder(index)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.log").open("wb") as log:
            self.started[index, name] = self.cluster.popen(
                self.plan.machines[index],
                argv,
                env=env,
                cwd=self.plan.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start_servers(self, **change: str) -> None:
        """All servers of all machines; ``change`` is put into their environment."""
        for index, machine in enumerate(self.plan.machines):
            for k in range(self.plan.servers):
                env = server_env(self.plan, index, k, machine.interface or "eth0")
                self.start(index, f"server-{k}", self.plan.command, {**env, **change})

    def start_trainers(self, **change: str) -> None:
        """One torchrun on each machine, which starts its trainers."""
        for index, machine in enumerate(self.plan.machines):
            env = trainer_env(self.plan, index, machine.interface or "eth0", cpus=1)
            self.start(index, "torchrun", torchrun_command(self.plan, index), {**env, **change})

    def look(self) -> list[dict[str, Any]]:
        """What each machine says about itself, see ``look_around.py``."""
        return look_at(self.cluster)

    def wait_until(self, ready: Callable[[], bool], what: str, every: float = POLL_SECONDS) -> None:
        """Return when it is so; stop with a message when a process ends before, or after two minutes."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not ready():
            ended = [(index, name) for (index, name), process in self.started.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended} ended" if ended else "the time is up"
                raise RuntimeError(f"waited for {what}; {why}\n" + "\n".join(self.log(*ended[0]) if ended else []))
            time.sleep(every)

    def wait_serving(self, machines: Sequence[int] | None = None) -> None:
        """Until the servers of these machines (None: of all) listen."""
        wanted = set(range(len(self.plan.machines)) if machines is None else machines)

        def ready() -> bool:
            facts = self.look()
            ports = [{port for _pid, port in facts[k]["listening"]} for k in wanted]
            return all({self.plan.machines[0].port + s for s in range(self.plan.servers)} <= p for p in ports)

        self.wait_until(ready, "the servers to listen", LOOK_SECONDS)

    def wait_joined(self) -> None:
        """Until all trainers have joined and wait for questions."""
        folder = Path(self.plan.cwd)
        self.wait_until(lambda: len(list(folder.glob("joined-*"))) == self.plan.world_size, "the trainers to join")

    def ask(self, task: str) -> list[Any]:
        """Have every trainer run a task of ``anatomy_script.py``; the answers, by rank."""
        folder, number = Path(self.plan.cwd), self._asked
        self._asked += 1
        put(folder / f"{number}.ask", task)
        files = [folder / f"{number}-{rank}.pt" for rank in range(self.plan.world_size)]
        self.wait_until(lambda: all(file.exists() for file in files), f"the answer to {task}")
        return [torch.load(file) for file in files]

    def finish(self) -> list[int]:
        """Let the trainers leave, and wait for all processes; their exit codes, in the order of their start."""
        put(Path(self.plan.cwd) / f"{self._asked}.ask", "leave")
        return [process.wait(LIMIT_SECONDS) for process in self.started.values()]

    def log(self, index: int, name: str) -> list[str]:
        """The lines of a log, without process numbers and chosen ports."""
        lines = (self.plan.log_folder(index) / f"{name}.log").read_text(errors="replace").splitlines()
        return [plain(line) for line in lines]


def look_at(cluster: EmulatedCluster) -> list[dict[str, Any]]:
    """What each machine says about itself."""
    return [json.loads(text) for text in ask(cluster, cluster.machines, LOOK)]


def on_machine(cluster: EmulatedCluster, index: int, program: str) -> str:
    """What a small Python program prints on a machine."""
    command = [sys.executable, "-c", "import tutorial_lib\n" + program]
    return ask(cluster, [cluster.machines[index]], command, stderr=subprocess.STDOUT)[0].strip()


def put(path: Path, text: str) -> None:
    """Write a file that a reader sees whole or not at all."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def plain(line: str) -> str:
    """A line of a log without what differs from run to run: process numbers and ports that the system chose."""
    waits = (r"Client \[\d+\] waits on ([\d.]+):\d+", r"Client [PID] waits on \1:PORT")
    return attempts.plain(line, (waits, (r'File "(?:[^"]*/)?([^"/]+)", line \d+', r'File "\1"')))


def shown_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a process gets on top of this notebook's environment, with the lesson's folder as ``WORK``."""
    names = [name for name in env if re.match(r"DGL_|GLOO_|NCCL_|OMP_NUM|TUTORIAL_(MACHINE|INDEX)|LESSON_G", name)]
    return {name: env[name].replace(str(folder), "WORK") for name in names}


# ---- facts


@dataclass(frozen=True, order=True)
class Who:
    """A process: the machine it runs on, its role, and its number among those of that role there."""

    machine: str
    role: str
    index: int

    def __str__(self) -> str:
        return (
            f"{self.role} {self.index} on {self.machine}" if self.role != "torchrun" else f"torchrun on {self.machine}"
        )


@dataclass(frozen=True, order=True)
class Call:
    """A TCP connection: who opened it, and whose listening port it was opened to."""

    caller: Who
    callee: Who
    port: int


def people(facts: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Who]:
    """(machine, process number) -> who it is."""
    return {
        (machine["machine"], int(pid)): Who(machine["machine"], process["role"], process["index"])
        for machine in facts
        for pid, process in machine["processes"].items()
    }


def calls(facts: Sequence[Mapping[str, Any]]) -> list[Call]:
    """Join the two ends of every connection; each machine reports its own sockets only."""
    who = people(facts)
    ends = {(own, other): who[m["machine"], pid] for m in facts for pid, own, other in m["connected"]}
    listens = {(who[m["machine"], pid], port) for m in facts for pid, port in m["listening"]}
    found = []
    for (own, other), callee in ends.items():
        port = int(own.rsplit(":", 1)[1])
        if (callee, port) in listens and (other, own) in ends:
            found.append(Call(ends[other, own], callee, port))
    return sorted(found)


def shared_names(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name in /dev/shm -> roles of the processes that have it mapped, for one machine."""
    who = people([facts])
    return {
        name: sorted(f"{w.role} {w.index}" for w in (who[facts["machine"], pid] for pid in pids))
        for name, pids in sorted(facts["shm"].items())
        if not name.startswith("sem.")  # locks of Python's queues between a trainer and its samplers
    }
