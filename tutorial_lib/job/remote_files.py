"""Copies files to machines that share no folder with this computer, and their results back, with rsync.

The folder ``--copy_to`` on the machines contains the workspace of ``launch``, the partitions of ``train`` in
``partitions/``, and the run folder in ``results/``, which is removed after a complete download. Until then,
``pending_download.json`` in the run folder names the machines, so that ``fetch`` and ``--resume`` can finish.
"""

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import psutil

from tutorial_lib.errors import InputError, JobError, Log, TutorialError, check_trust, describe_exit_code, printable
from tutorial_lib.files import fsync_path, lock_folder, read_json, write_json
from tutorial_lib.job.folder import OPTIONS_FILE, PENDING_FILE, check_writable
from tutorial_lib.launcher.backends import Backend, wait_or_kill
from tutorial_lib.launcher.backends.remote import SshBackend
from tutorial_lib.launcher.coordinator import Event, OnEvent
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.trainer.manifest import NEWEST, adopt_checkpoint, read_manifests

JOB, IP_CONFIG = "job.json", "ip_config.txt"  # inputs of the trainers in the run folder
NOT_FETCHED = [JOB, IP_CONFIG, PENDING_FILE, OPTIONS_FILE, "events.jsonl", "result.json", "checkpoint/manifest*.json"]
SKIPPED = (".*", "__pycache__/", "runs/", "node_modules/")  # not copied from a workspace
SILENCE_SECONDS = 300  # rsync sends nothing while it compares a large file
# With -s, no shell expands a name. The progress makes rsync notice that this process was killed and its pipe is closed.
RSYNC = ["rsync", "-rcs", "--no-h", "--stats", "--info=progress2", "--outbuf=N", "--partial-dir=.rsync-partial"]
REMEDIES = {
    "is your shell clean": "Its ~/.bashrc must print nothing to programs. Begin it with: [[ $- == *i* ]] || return",
    "not found": "Each machine needs rsync: sudo apt install rsync",
}
CONSEQUENCE = re.compile(r"^\s*$|^rsync error:|unexpectedly closed|Broken pipe|safe_|write error|see the rsync manpage")
Upload = tuple[Path, str, Path | None]  # folder here, folder below COPY_TO, and folder of the parts, if it has parts


@dataclass(frozen=True)
class PendingDownload:
    """Content of ``pending_download.json``: the folder of a run on its machines, and how to reach them over ssh."""

    folder: str
    machines: list[tuple[str, str]]  # names and addresses, machine 0 first
    port: int | None = None
    username: str | None = None
    config: str | None = None


def read_pending_download(run: Path) -> PendingDownload | None:
    """Return the pending download of a run, or None if nothing is left to download."""
    if not os.path.lexists(run / PENDING_FILE):
        return None
    pending = read_json(run / PENDING_FILE, PendingDownload)
    if not (pending.machines and re.fullmatch(r"/.*/results/[^/]+-[0-9a-f]{8}", pending.folder)):  # would be removed
        raise InputError(f"{run / PENDING_FILE} is damaged: {pending.folder} is not the folder of a run")
    return pending


def pending_download_of(backend: Backend, path: str) -> PendingDownload:
    return PendingDownload(path, [(m.name, m.address) for m in backend.machines], **(backend.traits.ssh_options or {}))


def fetch_results(run: Path, log: Log, backend: Backend | None = None, *, trust: bool) -> list[str]:
    """Download all results that an interrupted run has left on its machines. Return the problems."""
    with lock_folder(run, 0.0):  # a running job downloads its results itself
        check_writable(run)
        if (pending := read_pending_download(run)) is None:
            return []
        if backend is None or pending != pending_download_of(backend, pending.folder):  # other machines
            named = {name: value for name, value in asdict(pending).items() if value}
            check_trust(run / PENDING_FILE, named, trust=trust)
        machines = [Machine(*machine) for machine in pending.machines]
        ssh_backend = SshBackend(machines, port=pending.port, username=pending.username, config=pending.config)
        # The backend is not entered, because an unreachable machine would prevent the download from the others.
        return RemoteFiles(ssh_backend, run, lambda event: log(event["text"])).finish()


class RemoteFiles:
    """Entering this context uploads the inputs of a job. Leaving it downloads the results, however the job ended.

    Each checkpoint is downloaded during the job. If results of a successful job are missing, a JobError names them.
    """

    def __init__(self, backend: Backend, run: Path, on_event: OnEvent, uploads: Sequence[Upload] = ()) -> None:
        self.backend, self.run = backend, run
        self.pending = read_pending_download(run)  # a run and its continuations have one folder until all files arrive
        copy_to = backend.traits.copy_to
        self.folder = self.pending.folder if self.pending else f"{copy_to}/results/{run.name}-{os.urandom(4).hex()}"
        self.uploads = [(run, self.folder, None)]
        self.uploads += [(source, f"{copy_to}/{target}", parts) for source, target, parts in uploads]
        self._on_event = on_event
        self._background = ThreadPoolExecutor(1)
        self._checkpoints = 0

    def locate(self, path: str) -> str:
        """Return the path on the machines of a file or folder here, which must be in an uploaded folder."""
        for source, target, _parts in self.uploads:
            if Path(path).is_relative_to(source):
                return os.path.normpath(f"{target}/{Path(path).relative_to(source)}")
        remedy = "Move it there, choose a larger --workspace, or omit --copy_to or --own-disks."
        raise InputError(f"{path} is not in {self.uploads[-1][0]}, which is copied to the machines", remedy)

    def on_event(self, event: Event) -> None:
        """Forward an event of the job, and download the checkpoint that it reports."""
        self._on_event(event)
        if event["kind"] == "checkpoint":
            self._checkpoints += 1
            self._background.submit(self._follow, self._checkpoints)

    def _follow(self, number: int) -> None:
        problems = self._download() if number == self._checkpoints else []
        if problems and number == self._checkpoints:  # otherwise, the next call downloads a newer checkpoint
            self._warn(f"a checkpoint could not be downloaded, and the training continues: {problems[0]}")

    def _warn(self, text: str) -> None:
        self._on_event({"kind": "warning", "text": text})

    def __enter__(self) -> "RemoteFiles":
        if self.backend.traits.ssh_options is not None:  # otherwise, no later command can reach the machines
            write_json(self.run / PENDING_FILE, asdict(pending_download_of(self.backend, self.folder)))
        for error in self._on_all(self._upload).values():
            if self.pending is None:  # no process has run, so no machine has results
                self._remove_folders()
            raise error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        self._background.shutdown(cancel_futures=True)
        problems = self.finish()
        if problems and kind is None:
            message = f"the job succeeded, but some of its results were not downloaded: {problems[0]}"
            raise JobError(message, "\n".join(problems[1:]))
        for text in problems:
            self._warn(text)

    def finish(self) -> list[str]:
        """Download all results, and then remove the folders on the machines. Return the problems of the download."""
        problems = self._download()
        if not problems:
            self._remove_folders()
        elif self.backend.traits.ssh_options is not None:
            problems.append(f"python -m tutorial_lib fetch {shlex.quote(str(self.run))} downloads the rest")
        return problems

    def _download(self) -> list[str]:
        """Download all files that differ, and the manifest of the newest checkpoint last. Return the problems."""
        problems: list[str] = []
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=self.run) as folder:
                with contextlib.suppress(JobError):  # the next copy from this machine fails, too
                    rules = ["+ /checkpoint/", f"+ /checkpoint/{NEWEST}", "- *"]
                    self._fetch(self.backend.machines[0], Path(folder), rules)
                newest = read_manifests(Path(folder, "checkpoint")).get(NEWEST)
            fetch = partial(self._fetch, target=self.run, rules=[f"- /{name}" for name in NOT_FETCHED])
            for machine, error in self._on_all(fetch).items():
                problems.append(f"{error}; {machine.name} ({machine.address}) still has its results in {self.folder}")
            for path in self.run.rglob("*"):
                fsync_path(path)
            local = read_manifests(self.run / "checkpoint").get(NEWEST)
            if newest and (local is None or (len(local.epochs), local.step) < (len(newest.epochs), newest.step)):
                adopt_checkpoint(self.run / "checkpoint", newest)
        except (TutorialError, OSError) as error:
            problems.append(f"the newest checkpoint could not be downloaded: {error}")
        return problems

    def _fetch(self, machine: Machine, target: Path, rules: list[str]) -> None:
        source = f"{machine.address}:{self.folder}/"
        self._rsync("copying from", machine, source, f"{target}/", ["- .*", *rules], "-tm", "--no-c")  # -t: by time

    def _upload(self, machine: Machine) -> None:
        k, copied = self.backend.machines.index(machine), 0
        for source, target, parts in self.uploads:
            if source == self.run:  # other machines need only their rows of a checkpoint
                whole = ["- embeddings-*", "+ /checkpoint/***"] if k == 0 else ["+ /checkpoint/", "+ /checkpoint/*/"]
                rules = [f"+ embeddings-{machine.name}.safetensors", f"+ /{JOB}", f"+ /{IP_CONFIG}", *whole, "- *"]
            else:
                rules = [f"- {name}" for name in (*SKIPPED, f"/{os.path.relpath(self.run, source)}/")]
                if parts is not None:
                    part = os.path.normpath(f"/{os.path.relpath(parts, source)}/part")
                    rules += [f"+ {part}{k}/", f"- {part}[0-9]*/"]
            rsync_path = f"--rsync-path=mkdir -p {shlex.quote(target)} && rsync"
            remote = f"{machine.address}:{target}/"
            output = self._rsync("copying to", machine, f"{source}/", remote, rules, "-L", rsync_path)
            copied += int(re.findall(r"files transferred: (\d+)", output)[0])
        self._on_event({"kind": "copied", "text": f"{machine.name}: {copied} files copied, checksums verified"})

    def _remove_folders(self) -> None:
        (self.run / PENDING_FILE).unlink(missing_ok=True)
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), DEVNULL)
        removals = {m: self.backend.popen(m, ["rm", "-rf", "--", self.folder], **silent) for m in self.backend.machines}
        for machine, removal in removals.items():
            wait_or_kill(removal, SILENCE_SECONDS)
            if removal.returncode:
                self._warn(f"{machine.name} ({machine.address}) still has {self.folder}")

    def _on_all(self, function: Callable[[Machine], None]) -> dict[Machine, BaseException]:
        """Call ``function`` for several machines at a time. Return the errors."""
        with ThreadPoolExecutor(8) as pool:
            calls = {machine: pool.submit(function, machine) for machine in self.backend.machines}
            try:
                return {machine: error for machine, call in calls.items() if (error := call.exception())}
            except BaseException:  # Ctrl-C
                pool.shutdown(wait=False, cancel_futures=True)
                for child in psutil.Process().children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if child.name() == "rsync":
                            child.terminate()
                raise

    def _rsync(self, task: str, machine: Machine, source: str, target: str, rules: list[str], *options: str) -> str:
        """Run rsync and return its output. A JobError names the machine and the cause."""
        shell = " ".join("'" + word.replace("'", "''") + "'" for word in self.backend.rsync_shell(machine))
        options = (*options, f"--timeout={SILENCE_SECONDS}", "-e", shell, *(f"--filter={rule}" for rule in rules))
        command = [*RSYNC, *options, "--", source, target]
        process = {"env": {**os.environ, "LC_ALL": "C"}, "start_new_session": True}
        with tempfile.TemporaryFile("w+", errors="replace") as file:  # ssh can outlive rsync and keep a pipe open
            result = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=file, text=True, **process)
            file.seek(0)
            errors = file.read()
        if result.returncode not in (0, 24):  # 24: the trainers have removed an older checkpoint during the copy
            causes = [line for line in errors.splitlines() if not CONSEQUENCE.search(line)]
            cause = printable([describe_exit_code(result.returncode), *causes][-1])
            remedy = next((remedy for text, remedy in REMEDIES.items() if text in errors), "")
            raise JobError(f"{task} {machine.name}: {cause}", remedy)
        return result.stdout
