"""Backends of the soak test: start a job, find its processes, and find the files and processes that it left."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from commands import MARK
from fault_support import FAULTY
from progress_support import find_processes
from runtime_support import files_and_interfaces, marked_processes
from ssh_support import SshLab

SETTINGS = ["--scale", "0.005", "--fanouts", "5,5", "--hidden-size", "16", "--batch-size", "20"]
PIPES: dict = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "errors": "replace"}


class SoakBackend:
    """Runs ``train`` and ``launch`` with one option for machines."""

    name = ""
    options: tuple[str, ...] = ()  # of `train` and `launch` for the machines
    parts = 2  # one per machine

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        self.ip_config = f"ip-{type(self).__name__.lower()}.txt"  # of `launch`, below the workspace
        self.before = self.host_state()

    def __enter__(self) -> "SoakBackend":
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def start(self, *arguments: str) -> subprocess.Popen:
        """Start ``python -m tutorial_lib ARGUMENTS`` in a new session, as a terminal does."""
        command = [sys.executable, "-m", "tutorial_lib", *arguments]
        return subprocess.Popen(command, **PIPES, stderr=subprocess.PIPE, start_new_session=True, cwd=self.folder)

    def train(self, out: Path, epochs: int, *more: str) -> list[str]:
        """Return the arguments of ``train``, with ``--resume`` if the run has a checkpoint."""
        resume = ["--resume"] if (out / "checkpoint" / "manifest.json").exists() else []
        common = ["--epochs", str(epochs), "--root", str(self.data), "--out", str(out), *SETTINGS]
        return ["train", *self.options, *common, *resume, *more]

    def launch(self, out: Path, fault: str, rank: str, *more: str) -> list[str]:
        """Return the arguments of ``launch`` for ``faulty_trainer.py``."""
        workspace = self.workspace()
        config = next((workspace / "parts").glob("synthetic*.json"))
        script = shlex.join(["python3", "faulty_trainer.py", "synthetic-products", fault, rank])
        words = ["--workspace", str(workspace), "--part_config", str(config), "--ip_config", self.ip_config]
        return ["launch", *self.options, *words, "--out", str(out), "--stall-timeout", "6", *more, script]

    def workspace(self) -> Path:
        """Return the workspace with partition and script, which the first call makes."""
        workspace = self.folder / f"workspace {self.parts}"
        if not workspace.exists():
            command = [sys.executable, "-m", "tutorial_lib", "partition", "--dataset", "synthetic-products"]
            command += ["--scale", "0.005", "--root", str(self.data), "--parts", str(self.parts)]
            subprocess.run([*command, "--out", str(workspace / "parts")], check=True, capture_output=True, timeout=120)
            shutil.copy(FAULTY, workspace)
            (workspace / "copy_of_the_user.txt").write_text("mine\n")
        return workspace

    def pid(self, process: subprocess.Popen) -> int:
        return process.pid

    def host_state(self) -> set[str]:
        """Return all files and interfaces of the kinds that a job could leave on this computer."""
        return files_and_interfaces() | {str(path) for path in Path(tempfile.gettempdir()).glob("pymp-*")}

    def find_leftovers(self) -> list[str]:
        """Return the processes, files and interfaces that jobs have left."""
        return sorted([*marked_processes(os.environ[MARK]), *(self.host_state() - self.before)])

    def repair(self) -> None:
        """Undo the damage of a fault to the machines."""

    def recover(self, out: Path) -> str:  # noqa: ARG002
        """Do what an interrupted job asks of its user, and return the problem if this fails."""
        return ""


class Emulated(SoakBackend):
    """Two emulated machines."""

    name, options = "emulated", ("--emulate", "2")


class Local(SoakBackend):
    """One machine without namespaces."""

    name, options, parts = "--machines 1", ("--machines", "1"), 1


class Ssh(SoakBackend):
    """Two machines with private disks and ssh servers. A login node runs the commands."""

    name = "ssh --copy_to"

    def __init__(self, folder: Path, data: Path) -> None:
        self.lab = SshLab(folder / "ssh")
        super().__init__(folder, data)

    def __enter__(self) -> "Ssh":
        self.lab.__enter__()
        self.disk = self.folder / "disk"
        self.options = ("--ip_config", str(self.lab.ip_config), "--copy_to", str(self.disk))
        self.before = self.host_state()
        return self

    def __exit__(self, *exc: object) -> None:
        self.lab.__exit__(*exc)

    def start(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "tutorial_lib", *arguments]
        return self.lab.start(*command, **PIPES, cwd=str(self.folder))

    def launch(self, out: Path, fault: str, rank: str, *more: str) -> list[str]:
        shutil.copy(self.lab.ip_config, self.workspace() / self.ip_config)
        words = super().launch(out, fault, rank, *more)
        position = words.index("--ip_config")
        del words[position : position + 2]  # of `train`, because the workspace contains another
        return words

    def pid(self, process: subprocess.Popen) -> int:
        """Return the PID of the command, which is a child of the process that entered the machine."""
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    def find_leftovers(self) -> list[str]:
        names = {m.name: self.lab.left_on(m) for m in [*self.lab.machines, self.lab.head]}
        there = [f"{name}: {what}" for name, (running, shm, _) in names.items() for what in [*running, *shm]]
        return sorted([*there, *(self.host_state() - self.before)])

    def repair(self) -> None:
        for machine in self.lab.machines:
            self.lab.cluster.change_link(machine, "mend")

    def remaining_results(self) -> list[str]:
        """Return the folders of runs on the machines."""
        return [str(path) for results in self.lab.on_disks(self.disk / "results") for path in results.glob("*")]

    def recover(self, out: Path) -> str:
        """Download the remaining results, after which the machines must have none."""
        if not self.remaining_results():
            return ""
        done = self.lab.tutorial("fetch", str(out), "--trust", cwd=str(self.folder))
        if done.returncode != 0:
            return f"fetch: exit code {done.returncode}: {done.stderr.strip()}"
        return f"after fetch, still there: {there}" if (there := self.remaining_results()) else ""


def find_job_processes(role: str) -> list[psutil.Process]:
    """Return the processes of a role on all machines, sorted by rank."""
    if role != "agent":
        return [psutil.Process(process.pid) for process in find_processes(Path("/")) if process.role == role]
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            words = process.cmdline()
            if words[1] == "-c" and "tutorial_lib.launcher.agent" in words[2]:
                found.append(process)
    return found
