"""Three ways to run a job, and for each: its command, its processes, and what it has left behind."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from ssh_support import SshLab

from tutorial_lib.launcher.jobspec import Machine

TESTS = Path(__file__).resolve().parents[1]
SETTINGS = ["--scale", "0.005", "--fanouts", "5,5", "--hidden-size", "16", "--batch-size", "20"]


class Way:
    """A job on two machines of some kind.

    Attributes:
        name: as in the table.
        options: of ``train`` and ``launch``, that say where to run.
        parts: machines, and so parts of the graph.
    """

    name = ""
    options: tuple[str, ...] = ()
    parts = 2

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        self.before = self.seen()

    def __enter__(self) -> "Way":
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def start(self, *arguments: str) -> subprocess.Popen:
        """``python -m tutorial_lib ARGUMENTS``, in a session of its own, as a terminal would have it."""
        return subprocess.Popen(
            [sys.executable, "-m", "tutorial_lib", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            cwd=self.folder,
        )

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
        words = ["--workspace", str(workspace), "--part_config", str(config), "--ip_config", self.ip_config()]
        return ["launch", *self.options, *words, "--out", str(out), "--stall-timeout", "6", *more, script]

    def ip_config(self) -> str:
        """Address file of ``launch``, below the workspace."""
        return f"ip-{self.name.split()[0]}.txt"

    def workspace(self) -> Path:
        """A folder as a user would have it, with parts and script; made once."""
        workspace = self.folder / f"workspace {self.parts}"
        if not workspace.exists():
            command = [sys.executable, "-m", "tutorial_lib", "partition", "--dataset", "synthetic-products"]
            command += ["--scale", "0.005", "--root", str(self.data), "--parts", str(self.parts)]
            subprocess.run([*command, "--out", str(workspace / "parts")], check=True, capture_output=True, timeout=120)
            for name in ("faulty_trainer.py", "copy_of_the_user.txt"):
                source = TESTS / "programs" / name
                (workspace / name).write_bytes(source.read_bytes() if source.exists() else b"mine\n")
        return workspace

    def pid(self, process: subprocess.Popen) -> int:
        """Of the command itself."""
        return process.pid

    def seen(self) -> set[str]:
        """What a job could leave on this computer."""
        temporary = Path(tempfile.gettempdir())
        found = {str(path) for pattern in ("torchelastic_*", "pymp-*") for path in temporary.glob(pattern)}
        found |= {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
        return found | {f"interface {name}" for name in psutil.net_if_addrs()}

    def left(self) -> list[str]:
        """What is there now and was not before: processes, files, interfaces, ports."""
        names = [f"{p.pid} {' '.join(p.cmdline())[:100]}" for p in jobs_processes()]
        return sorted([*names, *(self.seen() - self.before)])

    def after(self, out: Path) -> str:  # noqa: ARG002
        """What the user is told to do after a job that was broken off; returns what went wrong in it."""
        return ""


class Emulated(Way):
    """Two machines on this computer."""

    name, options = "emulated", ("--emulate", "2")


class Local(Way):
    """This computer as it is, without namespaces."""

    name, options, parts = "--machines 1", ("--machines", "1"), 1

    def ip_config(self) -> str:
        return "ip-local.txt"


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
        self.daemons = {p.pid for p in psutil.Process().children(recursive=True)}
        return self

    def __exit__(self, *exc: object) -> None:
        self.lab.__exit__(*exc)

    def on(self, machine: Machine, *argv: str) -> str:
        """What a command prints there."""
        process = self.lab.cluster.popen(machine, list(argv), stdout=subprocess.PIPE, text=True)
        out = process.communicate(timeout=30)[0]
        assert process.returncode == 0, (argv, out)
        return out

    def start(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "tutorial_lib", *arguments]
        return self.lab.start(*command, stdin=subprocess.DEVNULL, errors="replace", cwd=str(self.folder))

    def launch(self, out: Path, fault: str, rank: str, *more: str) -> list[str]:
        shutil.copy(self.lab.ip_config, self.workspace() / "ip-ssh.txt")
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

    def results_there(self) -> list[str]:
        """Folders of runs on the machines."""
        script = f"ls {shlex.quote(str(self.disk))}/results 2>/dev/null || true"
        return [f"{m.name}: {name}" for m in self.lab.machines for name in self.on(m, "sh", "-c", script).split()]

    def after(self, out: Path) -> str:
        """Bring home what is still there; then nothing is."""
        if not self.results_there():
            return ""
        done = self.start("fetch", str(out), "--trust")
        text = done.communicate(timeout=120)
        if done.returncode != 0:
            return f"fetch: exit code {done.returncode}: {text[1].strip()}"
        return f"after fetch, still there: {there}" if (there := self.results_there()) else ""


def jobs_processes() -> Iterator[psutil.Process]:
    """Descendants of this process, and orphans of them, that belong to a job."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("TUTORIAL_SOAK") and process.status() != "zombie":
                words = process.cmdline()
                if any("tutorial_lib" in word or "torch.distributed" in word for word in words):
                    yield process


def members(role: str) -> list[psutil.Process]:
    """Processes of the running job that have a role, on all machines, in the order of their ranks."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            words, log = process.cmdline(), Path(os.readlink(f"/proc/{process.pid}/fd/2"))
            if role == "agent":
                if words[1] == "-c" and "tutorial_lib.launcher.agent" in words[2]:
                    found.append((0, process.pid, process))
            elif log.parent.name.startswith("machine-") and words[:1] != ["/bin/sh"]:
                who, _, k = log.stem.partition("-")
                who = "sampler" if "--multiprocessing-fork" in words else who
                if who == role:
                    number = 1000 * int(log.parent.name.removeprefix("machine-")) + int(k or 0)
                    found.append((number, process.pid, process))
    return [process for _, _, process in sorted(found, key=lambda entry: entry[:2])]


def events_of(out: Path) -> list[dict]:
    """Whole lines of events.jsonl."""
    with contextlib.suppress(OSError):
        text = (out / "events.jsonl").read_text(errors="replace")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]
    return []
