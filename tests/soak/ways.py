"""Three ways to run a job, and for each: its command, its processes, and what it has left behind."""

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


class Way:
    """A job on machines of some kind."""

    name = ""
    options: tuple[str, ...] = ()  # of `train` and `launch`, that say where to run
    parts = 2  # machines, and so parts of the graph

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        self.ip_config = f"ip-{type(self).__name__.lower()}.txt"  # of `launch`, below the workspace
        self.before = self.seen()

    def __enter__(self) -> "Way":
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def start(self, *arguments: str) -> subprocess.Popen:
        """``python -m tutorial_lib ARGUMENTS``, in a session of its own, as a terminal would have it."""
        command = [sys.executable, "-m", "tutorial_lib", *arguments]
        return subprocess.Popen(command, **PIPES, stderr=subprocess.PIPE, start_new_session=True, cwd=self.folder)

    def train(self, out: Path, epochs: int, *more: str) -> list[str]:
        """Arguments of a run that continues if there is something to continue from."""
        resume = ["--resume"] if (out / "checkpoint" / "manifest.json").exists() else []
        common = ["--epochs", str(epochs), "--root", str(self.data), "--out", str(out), *SETTINGS]
        return ["train", *self.options, *common, *resume, *more]

    def launch(self, out: Path, fault: str, rank: str, *more: str) -> list[str]:
        """Arguments of a job of ``faulty_trainer.py`` in a workspace of the user's."""
        workspace = self.workspace()
        config = next((workspace / "parts").glob("synthetic*.json"))
        script = shlex.join(["python3", "faulty_trainer.py", "synthetic-products", fault, rank])
        words = ["--workspace", str(workspace), "--part_config", str(config), "--ip_config", self.ip_config]
        return ["launch", *self.options, *words, "--out", str(out), "--stall-timeout", "6", *more, script]

    def workspace(self) -> Path:
        """A folder as a user would have it, with parts and script; made once."""
        workspace = self.folder / f"workspace {self.parts}"
        if not workspace.exists():
            command = [sys.executable, "-m", "tutorial_lib", "partition", "--dataset", "synthetic-products"]
            command += ["--scale", "0.005", "--root", str(self.data), "--parts", str(self.parts)]
            subprocess.run([*command, "--out", str(workspace / "parts")], check=True, capture_output=True, timeout=120)
            shutil.copy(FAULTY, workspace)
            (workspace / "copy_of_the_user.txt").write_text("mine\n")
        return workspace

    def pid(self, process: subprocess.Popen) -> int:
        """Of the command itself."""
        return process.pid

    def seen(self) -> set[str]:
        """What a job could leave on this computer."""
        return files_and_interfaces() | {str(path) for path in Path(tempfile.gettempdir()).glob("pymp-*")}

    def left(self) -> list[str]:
        """What is there now and was not before: processes, files, interfaces, ports."""
        return sorted([*marked_processes(os.environ[MARK]), *(self.seen() - self.before)])

    def mend(self) -> None:
        """Repair what a fault has done to the machines."""

    def after(self, out: Path) -> str:  # noqa: ARG002
        """What the user is told to do after a job that was broken off; returns what went wrong in it."""
        return ""


class Emulated(Way):
    """Two machines on this computer."""

    name, options = "emulated", ("--emulate", "2")


class Local(Way):
    """This computer as it is, without namespaces."""

    name, options, parts = "--machines 1", ("--machines", "1"), 1


class Ssh(Way):
    """Two machines with ssh servers and disks of their own; commands are given on a third."""

    name = "ssh --copy_to"

    def __init__(self, folder: Path, data: Path) -> None:
        self.lab = SshLab(folder / "ssh")
        super().__init__(folder, data)

    def __enter__(self) -> "Ssh":
        self.lab.__enter__()
        self.disk = self.folder / "disk"
        self.options = ("--ip_config", str(self.lab.ip_config), "--copy_to", str(self.disk))
        self.before = self.seen()
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
        del words[position : position + 2]  # that of `train`; the workspace has its own
        return words

    def pid(self, process: subprocess.Popen) -> int:
        """The command is a child of what entered the machine."""
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    def left(self) -> list[str]:
        names = {m.name: self.lab.left_on(m) for m in [*self.lab.machines, self.lab.head]}
        there = [f"{name}: {what}" for name, (running, shm, _) in names.items() for what in [*running, *shm]]
        return sorted([*there, *(self.seen() - self.before)])

    def mend(self) -> None:
        for machine in self.lab.machines:
            self.lab.cluster.change_link(machine, "mend")

    def results_there(self) -> list[str]:
        """Folders of runs on the machines."""
        return [str(path) for results in self.lab.on_disks(self.disk / "results") for path in results.glob("*")]

    def after(self, out: Path) -> str:
        """Bring home what is still there; then nothing is."""
        if not self.results_there():
            return ""
        done = self.lab.tutorial("fetch", str(out), "--trust", cwd=str(self.folder))
        if done.returncode != 0:
            return f"fetch: exit code {done.returncode}: {done.stderr.strip()}"
        return f"after fetch, still there: {there}" if (there := self.results_there()) else ""


def members(role: str) -> list[psutil.Process]:
    """Processes of the running job that have a role, on all machines, in the order of their ranks."""
    if role != "agent":
        return [psutil.Process(process.pid) for process in find_processes(Path("/")) if process.role == role]
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            words = process.cmdline()
            if words[1] == "-c" and "tutorial_lib.launcher.agent" in words[2]:
                found.append(process)
    return found
