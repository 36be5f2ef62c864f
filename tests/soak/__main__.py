"""Start many jobs and inject one fault each at a random moment: ``python tests/soak [--launches 100] [--seed 0]``.

The jobs run on three backends. On each backend, every ``train`` resumes the same run, which completes at the end. Its
losses must equal those of an undisturbed run. After each job, no process or file may be left, the files of the user
must be unchanged, and the report must name the cause.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from backends import Emulated, Local, SoakBackend, Ssh
from commands import MARK
from fault_support import replace_table
from faults import FAULTS, Fault, Run

from tutorial_lib.files import sha256_of

os.environ[MARK] = "soak"  # every process of every job inherits it
os.environ["TUTORIAL_NO_SKIP"] = "1"  # also compare semaphores in /dev/shm
END_SECONDS = 90
GONE_SECONDS = 10


def losses_of(out: Path) -> list[float]:
    """Return the losses in result.json. A killed agent can lose the events of a saved epoch."""
    return [epoch["loss"] for epoch in json.loads((out / "result.json").read_text())["epochs"]]


def saved_epochs(out: Path) -> int:
    """Return the number of epochs in the checkpoint."""
    manifest = out / "checkpoint" / "manifest.json"
    return len(json.loads(manifest.read_text())["epochs"]) if manifest.exists() else 0


class Soak:
    """Starts the jobs and collects rows of the table, problems, and results of the continued runs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.data = folder, folder / "data"
        self.random = random.Random(seed)
        random.seed(seed)
        self.rows: dict[str, list[tuple[bool, float]]] = defaultdict(list)  # cause named, seconds
        self.problems: list[str] = []
        self.ends: list[str] = []
        self.count = 0

    def _run_to_end(self, backend: SoakBackend, out: Path, epochs: int) -> list[float]:
        process = backend.start(*backend.train(out, epochs))
        text, errors = process.communicate(timeout=END_SECONDS + 10 * epochs)
        assert process.returncode == 0, text + errors
        return losses_of(out)

    def launch(self, backend: SoakBackend) -> None:
        """Start a job, inject a random fault, and check its report and its cleanup."""
        self.count += 1
        fault = self.random.choice([fault for fault in FAULTS if not fault.backends or backend.name in fault.backends])
        run = self._start(backend, fault)
        owned = self._make_user_files(run)
        try:
            hit = self._inject(run, fault)
            start = time.monotonic()
            errors = run.process.communicate(timeout=END_SECONDS)[1]
            seconds = time.monotonic() - start
        except subprocess.TimeoutExpired:
            run.process.kill()
            errors, seconds, hit = run.process.communicate()[1], END_SECONDS, True
            self._problem(run, fault, f"no end within {END_SECONDS} s", errors)
        code = run.process.returncode
        named = re.search(fault.report, errors) is not None and code in fault.codes
        if hit:
            self.rows[fault.name].append((named, seconds))
            if not named:
                self._problem(run, fault, f"exit code {code}, and the cause is not named", errors)
        elif code != 0:
            self._problem(run, fault, f"ended by itself with exit code {code}", errors)
        if any(line.startswith("Traceback") for line in errors.splitlines()):
            self._problem(run, fault, "a bare traceback", errors)
        backend.repair()
        self._check_cleanup(run, fault, owned)
        for path in (path for path in owned if path.parent.name == "shm"):
            path.unlink(missing_ok=True)
        first = (errors.strip().splitlines() or ["(nothing)"])[0]
        print(f"{self.count:4} {backend.name:14} {fault.name:36} {seconds:5.1f} s  {code:4}  {first[:110]}", flush=True)

    def _start(self, backend: SoakBackend, fault: Fault) -> Run:
        if fault.script is None:
            out = self._continued_run(backend)
            return Run(backend, out, backend.start(*backend.train(out, 10_000, *fault.options)), trains=True)
        out = self.folder / f"launch-{self.count}"
        return Run(backend, out, backend.start(*backend.launch(out, *fault.script, *fault.options)), trains=False)

    def _inject(self, run: Run, fault: Fault) -> bool:
        """Inject the fault at a random moment. Return False if the job had ended before."""
        if fault.inject is None:
            return True
        if not fault.at_any_time:
            run.wait_until_training()
        time.sleep(self.random.uniform(0.5, 14) if fault.at_any_time else self.random.uniform(0, 3))
        if running := run.process.poll() is None:
            fault.inject(run)
        return running

    def _make_user_files(self, run: Run) -> dict[Path, str]:
        """Make user files with names like ours in places where we remove files, and return all user files."""
        mine = [Path("/dev/shm/torch_of_the_user_edge_1"), Path("/dev/shm/psm_node_of_the_user")]
        checkpoint = run.out / "checkpoint"
        if checkpoint.exists():
            mine += [checkpoint / ".notes", checkpoint / "epoch-0002-best-keep" / "model.safetensors"]
        for path in mine:
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
        written = ("ip-", "fault-at")  # by `launch` and by the script
        parts = [path for path in self.folder.glob("workspace*/**/*") if path.is_file()]
        parts = [path for path in parts if not path.name.startswith(written)]
        run.backend.before |= {str(path) for path in mine if path.parent.name == "shm"}
        return {path: sha256_of(path) for path in [*mine, *parts]}

    def _check_cleanup(self, run: Run, fault: Fault, owned: dict[Path, str]) -> None:
        deadline = time.monotonic() + (45 if "wire" in fault.name else GONE_SECONDS)
        while left := run.backend.find_leftovers():
            if time.monotonic() > deadline:
                self._problem(run, fault, f"left behind: {left}", "")
                run.backend.before = run.backend.host_state()
                break
            time.sleep(0.3)
        for path, digest in owned.items():
            if not path.exists() or sha256_of(path) != digest:
                self._problem(run, fault, f"the user's {path} is gone or changed", "")
        if problem := run.backend.recover(run.out):
            self._problem(run, fault, problem, "")
        if run.trains and (run.out / "logs").exists():
            shutil.rmtree(run.out / "logs")  # they would fill the disk

    def _problem(self, run: Run, fault: Fault, text: str, errors: str) -> None:
        sentence = f"launch {self.count}, {run.backend.name}, {fault.name}: {text}"
        self.problems.append(sentence)
        print(f"!!!! {sentence}\n{errors}", flush=True)

    def finish(self, backend: SoakBackend) -> None:
        """Finish the continued run, whose losses must equal those of an undisturbed run."""
        out = self._continued_run(backend)
        epochs = saved_epochs(out) + 2
        got = self._run_to_end(backend, out, epochs)
        wanted = self._run_to_end(backend, self.folder / f"{out.name}-undisturbed", epochs)
        different = [epoch for epoch, pair in enumerate(zip(got, wanted, strict=True)) if pair[0] != pair[1]]
        how = f"differ from epoch {different[0]} on" if different else "are equal"
        end = f"- {backend.name}: finished after {epochs} epochs. The losses of this and of an undisturbed run {how}."
        self.ends.append(end)
        self.problems += [end] if different else []

    def _continued_run(self, backend: SoakBackend) -> Path:
        out = self.folder / f"{backend.name.split()[0].strip('-')}-run"
        if not saved_epochs(out):  # the previous start failed in its first epoch
            shutil.rmtree(out, ignore_errors=True)
        return out

    def table(self) -> str:
        """Return the table in Markdown, with a row per fault."""
        lines = ["| fault | launches | cause named | longest, from fault to exit |", "|---|---|---|---|"]
        for name, seen in sorted(self.rows.items()):
            right, seconds = sum(named for named, _ in seen), max(seconds for _, seconds in seen)
            lines.append(f"| {name} | {len(seen)} | {right} | {seconds:.1f} s |")
        return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="first letters of the only backend: emulated, --machines 1, ssh")
    parser.add_argument("--table", type=Path, help="page whose table is replaced")
    options = parser.parse_args()
    for ignored in (signal.SIGHUP, signal.SIGINT):  # as set by nohup or a shell
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        soak = Soak(Path(name), options.seed)
        for kind in (Emulated, Local, Ssh):
            if options.only and not kind.name.startswith(options.only):
                continue
            with kind(soak.folder, soak.data) as backend:
                for _ in range(options.launches // 3 + (kind is Emulated) * (options.launches % 3)):
                    soak.launch(backend)
                soak.finish(backend)
    ends = "\n".join(soak.ends)
    found = f"{soak.count} launches with seed {options.seed}. The test found {len(soak.problems)} problems."
    text = f"{soak.table()}\n{found}\n\n{ends}\n"
    print("", text, *soak.problems, sep="\n")
    if options.table:
        replace_table(options.table, "tests/soak", text)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
