"""Run the commands of two commits on one matrix of cases, and compare exit codes, first causes, files and scores.

    python benchmarks/two_commits.py OLD [NEW] [--only PATTERN] [--folder NAME]

OLD and NEW are commits or folders with a checkout, and NEW is by default this folder. ``--only 'ssh|Slurm'`` runs the
cases with one of these words in their names, and ``--folder`` keeps all files. ``two_commits.yaml`` has the cases:
train and launch on every backend, resumed and fetched runs, copies, a fault of each kind, and every task with three
seeds. Both commits use the packages of this Python, so first install those that the old one needs. Cases without their
programs are skipped.

The table is printed as Markdown. A cell has two values if the commits differ, or the differences in numbers of files.
N and PATH replace numbers and paths. Scores of several seeds differ by standard deviations, at least 0.01. After a
case, the script ends the remaining processes. "Left behind" lists them with new files in the temporary folder and in
/dev/shm that no process has mapped, also those of other jobs. The exit code is 1 if the new commit left something
behind.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SHM, PROGRAMS = Path("/dev/shm"), "/usr/sbin:/usr/bin:/usr/local/bin"
SECONDS, LEAVE_SECONDS = 300, 30
COLUMNS = ("exit codes", "first cause", "files", "test score", "loss", "left behind")


def list_cases(only: str) -> Iterator[dict[str, Any]]:
    """Yield each case at each of its places as one dictionary."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    for name, case in table["cases"].items():
        for place in case.get("places", ["emulated"]):
            if re.search(only, title := f"{name}, {place}"):
                yield {**table["default"], **table["places"][place], **case, "title": title}


class Commit:
    """The commands of a commit or a checkout, with the other packages of this Python. ``folder`` is new."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.folder, source = folder, Path(commit).resolve()
        (folder / "tmp").mkdir(parents=True)
        if not source.is_dir():
            source, archive = folder / "source", folder.with_suffix(".tar")
            subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, commit], check=True)
            shutil.unpack_archive(archive, source)
        venv.create(folder / "venv", symlinks=True)
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        lines = (source, source / "notebooks", sysconfig.get_path("purelib"))
        (packages / "two_commits.pth").write_text("".join(f"{line}\n" for line in lines))
        self.env = {**os.environ, "TMPDIR": str(folder / "tmp")}
        python = folder / "venv" / "bin" / "python"
        self.values = {"root": folder / "data", "python": python, "tutorial": f"{python} -m tutorial_lib"}
        code, text = self.run(folder, "fetch --help")
        if code != "0":
            sys.exit(f"{commit} does not run with the packages of {sys.prefix}:\n{text}")
        self.values |= {"lab": f"{folder.name}-{os.getpid()}", "trust": "--trust" if "--trust" in text else ""}

    def run(self, folder: Path, command: str, fault: str = "") -> tuple[str, str]:
        """Return exit code and output of a command in a folder. The fault happens in the second epoch."""
        words, end = ["sh", "-c", f"exec {self.values['tutorial']} {command}"], time.monotonic() + SECONDS
        output = folder / f"{command.split()[0]}.out"
        with output.open("w") as log:
            files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(words, cwd=folder, env=self.env, **files)
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            if fault and re.search(r"epoch +2/", output.read_text()):
                name, receiver = fault.split()
                send(name, [process.pid] if receiver == "command" else self.processes(f"/machine-1/{receiver}.log"))
                fault = ""
        process.kill()  # without effect if it has ended
        code = f"{process.wait()}" + (" without the fault" if fault else "")
        return f"{code} after {SECONDS} s" if time.monotonic() > end else code, output.read_text()

    def processes(self, log: str = "") -> list[int]:
        """Return the processes of this commit, or those whose standard error has ``log`` in its path."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = str(self.folder) in (entry / "cmdline").read_text(errors="replace")
                if ours and (not log or log in os.readlink(entry / "fd/2")):
                    found.append(int(entry.name))
        return found

    def end_processes(self, log: str = "", seconds: float = LEAVE_SECONDS) -> list[int]:
        """Kill the processes that have not ended after some seconds, and return them."""
        end = time.monotonic() + seconds
        while (left := self.processes(log)) and time.monotonic() < end:
            time.sleep(0.2)
        send("KILL", left)
        return left


def send(name: str, pids: list[int]) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[f"SIG{name}"])


def is_in_use(path: Path) -> bool:
    """Return whether a process has mapped the file, for example a job of somebody else."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text(errors="replace"):
                return True
    return False


def run_case(commit: Commit, case: dict[str, Any], folder: Path, seed: int) -> dict[str, Any]:
    """Return a value for each column, with the files as a Counter and the scores as numbers."""
    folder.mkdir()
    (folder / "program.py").write_text(case["program"])
    (folder / "ip.txt").write_text("10.77.0.1\n10.77.0.2\n")
    values = {**case, **commit.values, "folder": folder, "tests": ROOT / "tests", "seed": seed}
    temporary, codes, still, text = (SHM, commit.folder / "tmp"), [], [], ""
    there = {path for place in temporary for path in place.iterdir()}

    def fill(text: str) -> str:
        filled = text.format(**values)
        return filled if filled == text else fill(filled)

    script = ["sh", "-c", fill("\n".join(case[key] for key in ("start", "prepare", "before")))]
    shell = subprocess.run(script, cwd=folder, env=commit.env, capture_output=True, text=True, timeout=SECONDS)
    values["ssh"] = next(iter(re.findall(r"-F (\S+)", shell.stdout)), "")
    for command in filter(None, (case["run"], case["then"])):
        code, text = commit.run(folder, fill(f"{case['inside']} {command}"), "" if codes else case["fault"])
        codes.append(code)
        still = commit.end_processes("/run/")
    if case["start"]:
        commit.run(folder, f"machines stop {values['lab']}")
    left = [f"process {pid}" for pid in {*still, *commit.end_processes()}]
    new = sorted({path for place in temporary for path in place.iterdir()} - there)
    left += [str(path) for path in new if not is_in_use(path)]
    told = [line for line in text.splitlines() if re.match("error:|interrupted|told to|stopped after", line)]
    cause = "" if codes[-1] == "0" else "".join((told or re.findall(r".*\w.*", text)[-1:])[:1])
    cause = re.sub(r"(?<![\w.])(?:/[\w.+~-]+)+", "PATH", cause).replace("|", "\\|")
    cause = re.sub(r"\d{2,}(\.\d+)*|\d+\.\d+", "N", cause)
    out, scores = folder / "run", (None, None)
    names = (re.sub(r"\.\w+\.tmp$", ".N.tmp", str(path.relative_to(out))) for path in out.rglob("*") if path.is_file())
    files = Counter(re.sub(r"\d+", "N", name) for name in names)
    if "result.json" in files:
        result = json.loads((out / "result.json").read_text())
        scores = (result["test_score"], result["epochs"][-1]["loss"])
    return dict(zip(COLUMNS, (", ".join(codes), cause, files, *scores, " ".join(left)), strict=True))


def describe(column: str, runs: list[list[dict[str, Any]]]) -> str:
    """Return a cell of the table. ``runs`` has the values of all seeds for each commit."""
    old, new = ([each[column] for each in seen] for seen in runs)
    if column == "files":
        counts = {name: new[0][name] - old[0][name] for name in sorted(new[0] | old[0])}
        return ", ".join(f"{count:+} {name}" for name, count in counts.items() if count) or f"{new[0].total()}"
    if len(new) > 1 and column in ("test score", "loss"):
        noise = max(0.01, statistics.stdev(old), statistics.stdev(new))
        first, second = statistics.mean(old), statistics.mean(new)
        return f"{first:.4f}; {second:.4f} ({(second - first) / noise:+.1f} σ)"
    texts = [f"{value:.4f}" if isinstance(value, float) else str(value or "") for value in (old[0], new[0])]
    return "; ".join(dict.fromkeys(texts))


def main() -> None:
    """Print the table. Exit with 1 if the new commit left something behind."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("commits", nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--folder")
    options, left = parser.parse_args(), False
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background commands ignore SIGINT
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary).resolve()
        old, new, *_ = (*options.commits, str(ROOT))
        commits = Commit(old, folder / "old"), Commit(new, folder / "new")
        print("| case |", " | ".join(COLUMNS), "|\n" + "|---" * (len(COLUMNS) + 1) + "|")
        for number, case in enumerate(list_cases(options.only)):
            try:
                if missing := [name for name in case["needs"].split() if not shutil.which(name, path=PROGRAMS)]:
                    raise FileNotFoundError(f"skipped: this computer has no {', '.join(missing)}")
                runs = [
                    [run_case(commit, case, commit.folder / f"{number}-{seed}", seed) for seed in range(case["seeds"])]
                    for commit in commits
                ]
                cells = [describe(column, runs) for column in COLUMNS]
                left |= bool(runs[-1][0]["left behind"])
            except Exception as error:  # the other cases still run
                cells = [f"{type(error).__name__}: {error}"]
            finally:
                for commit in commits:
                    commit.end_processes(seconds=0)
            print("|", " | ".join([case["title"], *cells]), "|", flush=True)
    sys.exit(left)


if __name__ == "__main__":
    main()
