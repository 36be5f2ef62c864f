"""Copies files to machines that share no folder with this computer, and their results back, with rsync.

    COPY_TO/                            workspace of ``launch``
    COPY_TO/partitions/NAME/            partition of ``train``, kept for later jobs
    COPY_TO/results/NAME-0123abcd/      run folder on the machines, removed after a complete download

Until then, ``delivery.json`` in the run folder names the machines, so that ``fetch`` and ``--resume`` can finish.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError, JobError, TutorialError, check_trust, how_it_ended, printable
from tutorial_lib.files import flush, read_json, write_json
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.backends.remote import SshBackend
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.trainer.manifest import NEWEST, adopt_checkpoint, readable

LIST = "delivery.json"
JOB, IP_CONFIG = "job.json", "ip_config.txt"  # inputs of the trainers in the run folder
ONLY_HERE = (JOB, IP_CONFIG, LIST, "options.json", "events.jsonl", "result.json")  # not replaced by a download
SILENCE_SECONDS, AT_ONCE = 300, 8  # rsync sends nothing while it compares a large file
REMEDIES = {
    "is your shell clean": "The ~/.bashrc there must print to terminals only. First line: [[ $- == *i* ]] || return",
    "not found": "Each machine needs rsync: sudo apt install rsync",
}
EFFECTS = re.compile(r"^\s*$|^rsync error:|unexpectedly closed|Broken pipe|safe_|write error|see the rsync manpage")
Event = dict[str, Any]
Upload = tuple[Path, str, list[list[str]]]  # folder here, folder below COPY_TO, filters of each machine


@dataclass(frozen=True)
class Delivery:
    """Content of ``delivery.json``: the folder of a run on its machines, and how to reach them over ssh."""

    folder: str
    machines: list[tuple[str, str]]  # names and addresses, machine 0 first. Empty after the download of all results
    port: int | None = None
    username: str | None = None
    config: str | None = None


def read_delivery(run: Path) -> Delivery | None:
    """Return the delivery of a run, or None if nothing is left to download."""
    try:
        found: Delivery = read_json(run / LIST, Delivery)
    except FileNotFoundError:
        return None
    known = all(re.fullmatch(r"\w[\w.-]*", name) and re.fullmatch(r"[\d.]+", ip) for name, ip in found.machines)
    if not known or not re.fullmatch(r"/.*/results/[^/]+-[0-9a-f]{8}", found.folder):
        raise InputError(f"{run / LIST} is damaged: its folder or its machines are not those of a job")
    return found if found.machines else None


def delivery_of(cluster: Backend, folder: str) -> Delivery:
    """Return the delivery of a job that runs on a cluster."""
    return Delivery(folder, [(each.name, each.address) for each in cluster.machines], **(cluster.traits.reach or {}))


def check_delivery(run: Path, left: Delivery, cluster: Backend | None = None, *, trust: bool) -> None:
    """Ask before a command connects to machines that a run folder names, unless they are those of ``cluster``."""
    if cluster is None or left != delivery_of(cluster, left.folder):
        check_trust(run / LIST, {name: value for name, value in asdict(left).items() if value}, trust=trust)


def exclude_other_parts(source: Path, part_config: Path | None, count: int, out: Path | None = None) -> list[list[str]]:
    """Return the filters of each machine, which exclude the parts of other machines and the run folder ``out``."""
    base = source if part_config is None else part_config.parent
    parts = [f"--exclude=/{os.path.relpath(base / f'part{k}', source)}/" for k in range(count)]
    skipped = [f"--exclude={name}" for name in (".*", "__pycache__/", "runs/", "node_modules/")]
    skipped += [f"--exclude=/{os.path.relpath(out, source)}/"] if out else []
    return [[*skipped, *parts[:k], *parts[k + 1 :]] for k in range(count)]


def include_run_files(machines: list[Machine]) -> list[list[str]]:
    """Return the filters of each machine for the run folder: its inputs, and the checkpoint without rows of others."""
    inputs = ["--exclude=embeddings-*", *(f"--include=/{name}" for name in (JOB, IP_CONFIG, "checkpoint/***"))]
    return [[f"--include=embeddings-{machine.name}.safetensors", *inputs, "--exclude=*"] for machine in machines]


class RemoteFiles:
    """Entering this context uploads the inputs of a job. Leaving it downloads the results, however the job ended.

    Each checkpoint is downloaded during the job. ``problems`` names the results that could not be downloaded.
    """

    def __init__(
        self, cluster: Backend, run: Path, on_event: Callable[[Event], None], uploads: Sequence[Upload] = ()
    ) -> None:
        if shutil.which("rsync") is None:
            raise InputError("copying files to the machines needs rsync", "Install it: sudo apt install rsync")
        self.cluster, self.run, self.problems = cluster, run, list[str]()
        self.before = read_delivery(run)  # a run and its continuations have one folder until all results are here
        new = f"{cluster.traits.copy_to}/results/{run.name}-{os.urandom(4).hex()}"
        self.folder = self.before.folder if self.before else new
        self.uploads = [(run, self.folder, include_run_files(cluster.machines))]
        self.uploads += [(source, f"{cluster.traits.copy_to}/{target}", rules) for source, target, rules in uploads]
        self._on_event, self._lock, self._running = on_event, threading.Lock(), set[subprocess.Popen[str]]()
        self._background, self._checkpoints = ThreadPoolExecutor(1), 0

    def locate(self, path: str) -> str:
        """Return the path on the machines of a file or folder here. An InputError reports that they do not get it."""
        for source, target, _rules in self.uploads:
            if Path(path).is_relative_to(source):
                return os.path.normpath(f"{target}/{Path(path).relative_to(source)}")
        remedy = "Move it there, choose a larger --workspace, or omit --copy_to or --own-disks."
        raise InputError(f"{path} is not inside {self.uploads[-1][0]}, which the machines get", remedy)

    def on_event(self, event: Event) -> None:
        """Forward an event of the job, and download the checkpoint that it reports."""
        with self._lock:
            self._on_event(event)
        if event["kind"] == "checkpoint":
            self._checkpoints += 1
            self._background.submit(self._follow, self._checkpoints)

    def _say(self, text: object, kind: str = "warning") -> None:
        self.on_event({"kind": kind, "text": str(text), "time": time.time()})

    def _remember(self, **changes: Any) -> None:
        if self.cluster.traits.reach is not None:  # otherwise, no later command can reach the machines
            write_json(self.run / LIST, {**asdict(delivery_of(self.cluster, self.folder)), **changes})

    def __enter__(self) -> "RemoteFiles":
        self._remember()
        for error in self._on_all(self._upload).values():
            if self.before is None:  # no process has run, so no machine has results
                self._on_all(self._remove)
                self._remember(machines=[])
            raise error
        return self

    def __exit__(self, *_exc: object) -> None:
        self._background.shutdown(cancel_futures=True)
        self.problems = self.finish()
        for text in self.problems:
            self._say(text)

    def finish(self) -> list[str]:
        """Download all results, and then remove the folders on the machines. Return the problems of the download."""
        problems = self._download()
        if not problems:
            self._remember(machines=[])
            for error in self._on_all(self._remove).values():
                self._say(f"{error}; {self.folder} is still there")
        elif self.cluster.traits.reach is not None:
            problems.append(f"python -m tutorial_lib fetch {shlex.quote(str(self.run))} downloads the rest")
        return problems

    def _follow(self, number: int) -> None:
        problems = self._download() if number == self._checkpoints else []
        if problems and number == self._checkpoints:  # otherwise, the next call downloads a newer checkpoint
            self._say(f"a checkpoint could not be downloaded, and the training continues: {problems[0]}")

    def _download(self) -> list[str]:
        """Download all files that differ, and the manifest of the newest checkpoint last. Return the problems."""
        first, checkpoints, owners = self.cluster.machines[0], self.run / "checkpoint", dict[str, str]()
        problems = list[str]()
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=self.run) as arrived:
                with contextlib.suppress(JobError):  # the next copy from this machine fails, too
                    self._fetch(first, arrived, ["--include=/checkpoint/", f"--include=/checkpoint/{NEWEST}"])
                here, newest = (readable(path).get(NEWEST) for path in (checkpoints, Path(arrived, "checkpoint")))
            if newest:
                owners = {f"{newest.folder}/{name}": of.machine or first.name for name, of in newest.files.items()}
            errors = self._on_all(lambda machine: self._fetch(machine, str(self.run), self._files_of(machine, owners)))
            for machine, error in errors.items():
                place = f"{machine.name} ({machine.address}) still has its results in {self.folder}"
                problems.append(f"{error}; {place}")
            for path in self.run.rglob("*"):
                flush(path)
            if newest and (here is None or (len(here.epochs), here.step) < (len(newest.epochs), newest.step)):
                adopt_checkpoint(checkpoints, newest)
        except (TutorialError, OSError) as error:
            problems.append(f"the newest checkpoint could not be downloaded: {error}")
        return problems

    def _files_of(self, machine: Machine, owners: dict[str, str]) -> list[str]:
        """Return the filters for the results of a machine, so that no machine can replace the file of another one.

        These are its logs and its files of the newest checkpoint, and all other files from the first machine.
        """
        first, *others = self.cluster.machines
        owned = [f"--include=/checkpoint/{file}" for file, owner in owners.items() if owner == machine.name]
        owned += [f"--exclude=/checkpoint/{name}" for name in ("epoch-*/*", "manifest*.json")]
        if machine != first:
            return [*owned, "--include=*/", f"--include={machine.name}/**"]
        excluded = [*(f"/{name}" for name in ONLY_HERE), *(f"{other.name}/" for other in others)]
        return [*owned, *(f"--exclude={name}" for name in excluded), "--include=**"]

    def _on_all(self, work: Callable[[Machine], None]) -> dict[Machine, BaseException]:
        """Call ``work`` for several machines at a time. Return the errors."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            calls = {machine: pool.submit(work, machine) for machine in self.cluster.machines}
            try:
                wait(calls.values())
            except BaseException:  # Ctrl-C
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    process.terminate()
                raise
        return {machine: error for machine, call in calls.items() if (error := call.exception())}

    def _upload(self, machine: Machine) -> None:
        copied = 0
        for source, target, rules in self.uploads:
            make = f"--rsync-path=mkdir -p {shlex.quote(target)} && rsync"
            options = ["-L", make, *rules[self.cluster.machines.index(machine)]]
            output = self._rsync(machine, "copying to", options, f"{source}/", f"{machine.address}:{target}/")
            copied += int(re.findall(r"files transferred: (\d+)", output)[0])
        self._say(f"{machine.name}: {copied} files copied, checksums verified", "copied")

    def _fetch(self, machine: Machine, target: str, rules: list[str]) -> None:
        options = ["-tm", "--exclude=.*", *rules, "--exclude=*"]
        self._rsync(machine, "copying from", options, f"{machine.address}:{self.folder}/", target)

    def _remove(self, machine: Machine) -> None:
        """Remove the run folder on a machine. rsync syncs its parent with an empty folder and skips other names."""
        parent, name = self.folder.rsplit("/", 1)
        with tempfile.TemporaryDirectory() as empty:
            options = ["--delete", f"--include=/{name}/***", "--exclude=*"]
            self._rsync(machine, "cleaning", options, f"{empty}/", f"{machine.address}:{parent}/")

    def _rsync(self, machine: Machine, task: str, options: list[str], source: str, target: str) -> str:
        """Run rsync and return its output. A JobError names the machine and the cause."""
        words = self.cluster.rsync_shell(machine)
        quoted = " ".join("'" + word.replace("'", "''") + "'" for word in words)
        # rsync reports its progress to a pipe, so it notices that this process was killed. With -s, no shell expands
        # a name.
        common = ["-rcs", "--no-h", "--stats", "--info=progress2", "--outbuf=N", "--partial-dir=.rsync-partial"]
        command = ["rsync", *common, f"--timeout={SILENCE_SECONDS}", "-e", quoted, *options, "--", source, target]
        settings: Event = {"start_new_session": True, "env": {**os.environ, "LC_ALL": "C"}}
        settings |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "errors": "replace"}
        with (
            tempfile.TemporaryFile("w+", errors="replace") as file,  # ssh can keep a pipe open for later connections
            subprocess.Popen(command, stderr=file, **settings) as process,
        ):
            self._running.add(process)
            output, _ = process.communicate()
            file.seek(0)
            errors = file.read()
        if process.returncode:
            causes = [line for line in errors.splitlines() if not EFFECTS.search(line)]
            remedy = next((remedy for text, remedy in REMEDIES.items() if text in errors), "")
            raise JobError(
                f"{task} {machine.name}: {printable([how_it_ended(process.returncode), *causes][-1])}", remedy
            )
        return output


def fetch_results(run: Path, left: Delivery, say: Callable[[str], None]) -> list[str]:
    """Download all results of an interrupted run from its machines. Return the remaining problems."""
    machines = [Machine(*machine) for machine in left.machines]
    # The backend is not entered, because an unreachable machine would prevent the download from the others.
    backend = SshBackend(machines, port=left.port, username=left.username, config=left.config)
    return RemoteFiles(backend, run, lambda event: say(event["text"])).finish()
