"""Copies files to machines that share no folder with this computer, and their results back, with rsync.

    COPY_TO/                            workspace of ``launch``
    COPY_TO/partitions/NAME/            partition of ``train``, kept for later jobs
    COPY_TO/results/NAME-0123abcd/      run folder on the machines, removed after a complete download

Until then, ``delivery.json`` in the run folder names the machines, so that ``fetch`` and ``--resume`` can finish.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError, JobError, TutorialError, check_trust, how_it_ended, printable
from tutorial_lib.files import flush, read_json, write_json
from tutorial_lib.launcher.backends import Backend, wait_or_kill
from tutorial_lib.launcher.backends.persistent import PersistentBackend
from tutorial_lib.launcher.backends.ssh import SshBackend
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.trainer.manifest import NEWEST, adopt_checkpoint, readable

LIST = "delivery.json"
JOB, IP_CONFIG = "job.json", "ip_config.txt"  # inputs of the trainers in the run folder
ONLY_HERE = (JOB, IP_CONFIG, LIST, "options.json", "events.jsonl", "result.json")  # not replaced by a download
SKIPPED = ("--exclude=.*", "--exclude=__pycache__/", "--exclude=runs/", "--exclude=node_modules/")
COPY_SECONDS, COMPARE_SECONDS = 60, 600  # limits without a byte. rsync is silent while it compares a large file
NOTICE_SECONDS, ENDING_SECONDS, AT_ONCE = 10.0, 10.0, 8
COUNTS = {"files": r"\(reg: (\d+)", "copied": r"files transferred: (\d+)", "bytes": r"transferred file size: (\d+)"}
REMEDIES = {
    "is your shell clean": "The ~/.bashrc there must print to terminals only. First line: [[ $- == *i* ]] || return",
    "not found": "Each machine needs rsync: sudo apt install rsync",
}
EFFECTS = re.compile(r"^\s*$|^rsync error:|unexpectedly closed|Broken pipe|safe_|write error|see the rsync manpage")
Event = dict[str, Any]
Upload = tuple[Path, str, list[list[str]]]  # folder here, folder on the machines, filters of each machine


@dataclass(frozen=True)
class Delivery:
    """Content of ``delivery.json``: the folder of a run on its machines, and how to reach them."""

    folder: str
    machines: list[tuple[str, str]]  # names and addresses, machine 0 first. Empty after the download of all results
    port: int | None = None  # option of ssh, like the next two fields
    username: str | None = None
    config: str | None = None
    on: str | None = None  # name of persistent emulated machines


def read_delivery(run: Path) -> Delivery | None:
    """Return the delivery of a run, or None if the run has no such file. A damaged file raises an InputError."""
    try:
        found: Delivery = read_json(run / LIST, Delivery)
    except FileNotFoundError:
        return None
    known = all(re.fullmatch(r"\w[\w.-]*", name) and re.fullmatch(r"[\d.]+", ip) for name, ip in found.machines)
    if not known or not re.fullmatch(r"/.*/results/[^/]+-[0-9a-f]{8}", found.folder):
        raise InputError(f"{run / LIST} is damaged: its folder or its machines are not those of a job")
    return found


def check_delivery(run: Path, delivery: Delivery, cluster: Backend | None = None, *, trust: bool) -> None:
    """Ask before a command connects to machines that a run folder names, unless they are those of ``cluster``."""
    given = (cluster.traits.reach if cluster else None) or {}
    addresses = {machine.address for machine in cluster.machines} if cluster else set()
    options = {"port": delivery.port, "username": delivery.username, "config": delivery.config}
    asked: Event = {f"ssh {name}": value for name, value in options.items() if value != given.get(name)}
    if others := [address for _name, address in delivery.machines if address not in addresses]:
        asked["machines"] = ", ".join(others)
    check_trust(run / LIST, {**asked, "folder there": delivery.folder} if asked else {}, trust=trust)


def exclude_other_parts(source: Path, part_config: Path | None, count: int, out: Path | None = None) -> list[list[str]]:
    """Return the filters of each machine, which exclude the parts of other machines and the run folder ``out``."""
    description = {} if part_config is None else json.loads(part_config.read_text())
    base = source if part_config is None else part_config.parent
    entries = [description.get(f"part-{k}", {}).values() for k in range(count)]
    folders = [{os.path.relpath((base / str(file)).parent, source) for file in entry} for entry in entries]
    others = [set[str]().union(*folders) - own for own in folders]
    skipped = [*SKIPPED, *([f"--exclude=/{os.path.relpath(out, source)}/"] if out else [])]
    return [[*skipped, *(f"--exclude=/{folder}/" for folder in sorted(each))] for each in others]


def include(*names: str) -> list[str]:
    """Return the filters that include only files and folders of these names."""
    return [*(f"--include=/{name}" for name in names), "--exclude=*"]


def include_run_files(machines: list[Machine]) -> list[list[str]]:
    """Return the filters of each machine for the run folder. They include inputs and the machine's checkpoint files."""
    epochs = "checkpoint/epoch-*/"
    shared = [JOB, IP_CONFIG, "checkpoint/", epochs]
    first = ["checkpoint/manifest*.json", f"{epochs}model.safetensors", f"{epochs}optimizer.safetensors"]
    rows = [f"{epochs}embeddings-{machine.name}.safetensors" for machine in machines]
    return [include(*shared, row, *(first if row == rows[0] else ())) for row in rows]


class RemoteFiles:
    """Entering this context uploads the inputs of a job. Leaving it downloads the results, however the job ended.

    Checkpoints are downloaded while the job runs. ``problems`` names the results that could not be downloaded.
    """

    def __init__(self, cluster: Backend, run: Path, on_event: Callable[[Event], None]) -> None:
        if shutil.which("rsync") is None:
            remedy = "Install it, also on the machines: sudo apt install rsync"
            raise InputError("copying files to the machines needs rsync, which this computer does not have", remedy)
        self.cluster, self.run = cluster, run
        self.uploads: list[Upload] = []
        self.before = read_delivery(run)
        self.folder = f"{cluster.traits.copy_to}/results/{run.name}-{os.urandom(4).hex()}"
        if self.before and self.before.folder.startswith(f"{cluster.traits.copy_to or ''}/"):
            self.folder = self.before.folder  # a run and its continuations have one folder
        self.problems: list[str] = []
        self._on_event, self._lock = on_event, threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._background, self._reported = ThreadPoolExecutor(1), 0

    def on_event(self, event: Event) -> None:
        """Forward an event of the job, and download the checkpoint that it reports."""
        with self._lock:
            self._on_event(event)
        if event["kind"] == "checkpoint":
            self._reported += 1
            self._background.submit(self._follow, self._reported)

    def _say(self, text: str, kind: str = "copied") -> None:
        self.on_event({"kind": kind, "text": text, "time": time.time()})

    def _remember(self, machines: list[Machine]) -> None:
        if self.cluster.traits.reach is not None:  # without ``reach``, the machines end with this command
            left = [(machine.name, machine.address) for machine in machines]
            write_json(self.run / LIST, asdict(Delivery(self.folder, left, **self.cluster.traits.reach)))

    def __enter__(self) -> "RemoteFiles":
        self._remember(self.cluster.machines)
        for error in filter(None, self._on_all(self._upload)):
            if self.before is None or not self.before.machines:  # no process has run, so no machine has results
                self._on_all(self._remove)
                self._remember([])
            raise error
        return self

    def __exit__(self, *_exc: object) -> None:
        self._background.shutdown(cancel_futures=True)
        self.download()
        for text in self.problems:
            self._say(text, "warning")

    def download(self) -> None:
        """Download all results. Then remove the folders on the machines, or set ``problems`` if a download failed."""
        errors = zip(self.cluster.machines, self._on_all(self._download), strict=True)
        left = f"still has its results in {self.folder}"
        self.problems = [f"{error}; {machine.name} ({machine.address}) {left}" for machine, error in errors if error]
        try:
            self._download_checkpoint()
            if not self.problems:
                shutil.rmtree(self.run / ".rsync-partial", ignore_errors=True)
                for path in self.run.rglob("*"):
                    flush(path)
                self._remember([])
                for error in filter(None, self._on_all(self._remove)):
                    self._say(f"{error}; {self.folder} is still there", "warning")
        except (TutorialError, OSError) as error:
            self.problems.append(f"the newest checkpoint could not be downloaded: {error}")
        if self.problems and self.cluster.traits.reach is not None:
            self.problems.append(f"python -m tutorial_lib fetch {shlex.quote(str(self.run))} downloads the rest")

    def _on_all(self, work: Callable[[Machine], None]) -> list[BaseException | None]:
        """Call ``work`` for several machines at a time. Return the error of each machine."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            calls = [pool.submit(work, machine) for machine in self.cluster.machines]
            try:
                wait(calls)
            except BaseException:  # Ctrl-C
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    process.terminate()
                raise
        return [call.exception() for call in calls]

    def _upload(self, machine: Machine) -> None:
        copied = count = 0
        for source, target, rules in self.uploads:
            make = f"--rsync-path=mkdir -p {shlex.join([target, self.folder])} && rsync"
            options = ["-cL", "--partial-dir=.rsync-partial", make, *rules[self.cluster.machines.index(machine)]]
            options += ["--", f"{source}/", f"{machine.address}:{target}/"]
            found = self._rsync(machine, "copying to", COMPARE_SECONDS, options)
            copied, count = copied + found["copied"], count + found["files"]
        self._say(f"{machine.name}: {copied} of {count} files copied, checksums verified")

    def _download(self, machine: Machine) -> None:
        """Download the logs of a machine. From machine 0, also download all other files except checkpoints."""
        first, *others = self.cluster.machines
        rules = ["--include=*/", f"--include={machine.name}/**", "--exclude=*"]
        if machine == first:
            excluded = [f"/{name}" for name in (*ONLY_HERE, "checkpoint/manifest*.json", "checkpoint/epoch-*/")]
            rules = [f"--exclude={name}" for name in (*excluded, *(f"{other.name}/" for other in others))]
        found = self._fetch(machine, rules, self.run)
        if found["files"]:
            megabytes = f"{found['bytes'] / 1e6:.1f} MB"
            self._say(f"{machine.name}: {found['copied']} files, {megabytes} brought home, checksums verified")

    def _follow(self, number: int) -> None:
        """Download a checkpoint during the job. If a newer checkpoint replaces it meanwhile, the next call succeeds."""
        try:
            self._download_checkpoint()
        except (TutorialError, OSError) as error:
            if number == self._reported:
                self._say(f"a checkpoint could not be downloaded, and the training continues: {error}", "warning")

    def _download_checkpoint(self) -> None:
        """Download the newest checkpoint. Write its manifest here only after all files are verified."""
        machines, folder = self.cluster.machines, self.run / "checkpoint"
        with tempfile.TemporaryDirectory() as arrived:
            self._fetch(machines[0], include("checkpoint/", f"checkpoint/{NEWEST}"), Path(arrived))
            manifest, here = readable(Path(arrived, "checkpoint")).get(NEWEST), readable(folder).get(NEWEST)
        if manifest is None or here == manifest:
            return
        if here and (len(here.epochs), here.step) > (len(manifest.epochs), manifest.step):
            return
        owners = {name: record.machine or machines[0].name for name, record in manifest.files.items()}
        inside = f"checkpoint/{manifest.folder}/"

        def fetch_owned(machine: Machine) -> None:
            if owned := [f"{inside}{name}" for name, owner in owners.items() if owner == machine.name]:
                self._fetch(machine, include("checkpoint/", inside, *owned), self.run)

        for error in filter(None, self._on_all(fetch_owned)):
            raise error
        adopt_checkpoint(folder, manifest)

    def _remove(self, machine: Machine) -> None:
        """Remove the run folder on a machine. rsync syncs its parent with an empty folder and skips other names."""
        parent, name = self.folder.rsplit("/", 1)
        with tempfile.TemporaryDirectory() as empty:
            options = ["--delete", *include(f"{name}/***"), "--", f"{empty}/", f"{machine.address}:{parent}/"]
            self._rsync(machine, "cleaning", COPY_SECONDS, options)

    def _fetch(self, machine: Machine, rules: list[str], target: Path) -> dict[str, int]:
        options = ["-tm", f"--partial-dir={self.run}/.rsync-partial", "--exclude=.*", *rules]
        options += ["--", f"{machine.address}:{self.folder}/", str(target)]
        return self._rsync(machine, "copying from", COPY_SECONDS, options)

    def _rsync(self, machine: Machine, task: str, seconds: int, options: list[str]) -> dict[str, int]:
        """Run rsync, report its progress, and return its counts. A JobError names the machine and the cause."""
        words, descriptors = self.cluster.rsync_shell(machine) or ([], [])
        quoted = " ".join("'" + word.replace("'", "''") + "'" for word in words)
        # Without a buffer, rsync notices that this process was killed. With -s, no shell expands a name.
        common = ["-rs", "--no-h", "--stats", "--info=progress2", "--outbuf=N", f"--timeout={seconds}", "-e", quoted]
        pipes: Event = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "errors": "replace"}
        pipes |= {"pass_fds": descriptors, "start_new_session": True, "env": {**os.environ, "LC_ALL": "C"}}
        label, output, reported = f"{task} {machine.name}", "", time.monotonic()
        with (
            tempfile.TemporaryFile("w+", errors="replace") as errors,
            subprocess.Popen(["rsync", *common, *options], stderr=errors, **pipes) as process,
        ):
            self._running.add(process)
            for line in process.stdout or ():  # a carriage return ends a line, too
                output += line
                if "%" in line and time.monotonic() - reported > NOTICE_SECONDS:
                    reported = time.monotonic()
                    self._say(f"{label}: {int(line.split()[0]) / 1e6:.1f} MB so far ({line.split()[1]})")
            wait_or_kill(process, ENDING_SECONDS)
            errors.seek(0)
            told = errors.read()
        if process.returncode:
            causes = [line for line in told.splitlines() if not EFFECTS.search(line)]
            remedy = next((remedy for text, remedy in REMEDIES.items() if text in told), "")
            raise JobError(f"{label}: {printable([how_it_ended(process.returncode), *causes][-1])}", remedy)
        return {name: int((re.findall(pattern, output) or [0])[0]) for name, pattern in COUNTS.items()}


def fetch_results(run: Path, left: Delivery, say: Callable[[str], None]) -> list[str]:
    """Download all results of an interrupted run from its machines. Return the remaining problems."""
    machines = [Machine(*machine) for machine in left.machines]
    # The cluster is not entered, because an unreachable machine would prevent the download from the others.
    ssh = SshBackend(machines, port=left.port, username=left.username, config=left.config)
    cluster: AbstractContextManager[Any] = nullcontext(ssh)
    if left.on is not None:
        try:
            cluster = PersistentBackend(left.on, len(machines), job=False)
        except InputError as error:
            write_json(run / LIST, asdict(Delivery(left.folder, [])))
            return [f"{error.message}; the results in {left.folder} are lost with the disks of the machines"]
    with cluster as entered:
        files = RemoteFiles(entered, run, lambda event: say(event["text"]))
        files.download()
        return files.problems
