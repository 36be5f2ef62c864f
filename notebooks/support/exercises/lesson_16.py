"""Checkers of lesson 16, real clusters."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.exercises import exercise, expect, expect_type, plain, rounded
from support.exercises.programs import read_result

EPOCHS_OF_JOBS = (2, 4)  # epochs after the first and after the second job of the chain


def check_chain(
    program: str, first: str | None, jobs: Sequence[str], uninterrupted: Sequence[Mapping[str, float]]
) -> None:
    """Exercise 1: a training consists of two jobs, and the first job submits the second one.

    Args:
        program: path of the batch script. Its training has written ``out/PROGRAM.json``.
        first: number of the job that the learner submitted.
        jobs: number and state of each job with the name ``chain``, as ``squeue`` prints them.
        uninterrupted: epochs of an uninterrupted job with the same options.
    """
    exercise(1)(lambda _: _check_chain(program, first, list(jobs), uninterrupted))(None)


def _check_chain(
    program: str, first: str | None, jobs: list[str], uninterrupted: Sequence[Mapping[str, float]]
) -> None:
    expect(f"{program} exists", Path(program).exists(), True, "Run the cell that begins with %%writefile.")
    expect("the job was submitted", first is not None, True, "Remove the # from the lines above.")
    states = {words[0]: words[1] for words in (line.split() for line in jobs) if len(words) == 2}
    since = {job: state for job, state in states.items() if job.isdigit() and int(job) >= int(str(first))}
    hint = "Set #SBATCH --job-name=chain. The script submits itself once while the result has fewer than 4 epochs."
    expect("jobs named chain since your job", len(since), len(EPOCHS_OF_JOBS), hint)
    hint = "Read their logs. A failed job must not submit another one."
    expect("states of these jobs", sorted(since.values()), ["COMPLETED"] * len(EPOCHS_OF_JOBS), hint)
    epochs = read_result(program)["epochs"]
    hint = "--num_epochs is the total number of epochs, $1."
    expect("epochs in the result", len(epochs), EPOCHS_OF_JOBS[-1], hint)
    losses = [rounded(epoch["loss"], 6) for epoch in epochs]
    expected = [rounded(epoch["loss"], 6) for epoch in uninterrupted[: EPOCHS_OF_JOBS[-1]]]
    hint = "Use the options of the first job and one --checkpoint for both jobs. Is it from an earlier attempt?"
    expect("losses, compared with those of an uninterrupted job", losses, expected, hint)


FAKE = '#!/bin/sh\nprintf "%s\\n" "$$" "$@" > "$NOTED"\n'
STARTS = (("7", ""), ("7", "1"), ("8", ""))  # job, restarts
SCRIPT_SECONDS = 20


def options_of(script: str) -> dict[str, str]:
    """Return the options of a batch script as ``sbatch`` reads them, which stops at the first command."""
    options: dict[str, str] = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            for k, word in enumerate(words):
                if word.startswith("--"):
                    name, _, value = word[2:].partition("=")
                    following = words[k + 1] if k + 1 < len(words) and not words[k + 1].startswith("-") else ""
                    options[name] = value or following
                elif word.startswith("-o"):
                    options["output"] = word[2:] or (words[k + 1] if k + 1 < len(words) else "")
    return options


def record_calls(script: Path) -> list[tuple[bool, list[str]]]:
    """Return, for each start, whether the script becomes Python itself, and the arguments of Python."""
    calls = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("python", "python3"):
            fake = Path(folder, name)
            fake.write_text(FAKE)
            fake.chmod(0o755)
        for job, restarts in STARTS:
            noted = Path(folder, "noted")
            noted.unlink(missing_ok=True)
            slurm = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "machine-[0-1]", "SLURM_NNODES": "2"}
            slurm |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
            environment = {**os.environ, **slurm, "PATH": f"{folder}:{os.environ['PATH']}", "NOTED": str(noted)}
            silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            silent |= {"cwd": folder, "env": environment, "start_new_session": True}
            process = subprocess.Popen(["bash", str(script.resolve())], **silent)
            try:
                process.wait(SCRIPT_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with all processes that it started
                process.wait()
            hint = "Call python -m tutorial_lib launch in the last line."
            expect(f"job {job}: the script calls python", noted.exists(), True, hint)
            pid, *words = noted.read_text().splitlines()
            calls.append((int(pid) == process.pid, words))
    return calls


def _value(words: Sequence[str], option: str) -> str:
    """Return the value of an option, which may be a part of the command of a trainer."""
    match = re.search(rf"{option}[ =]+(\S+)", " ".join(words))
    expect(f"{option} is given", match is not None, True, "Pass all options of the broken script to launch.")
    return match[1] if match else ""


@exercise(2)
def check_script(program: str) -> None:
    """Exercise 2: a batch script survives a preemption."""
    script = Path(program)
    expect(f"{program} exists", script.exists(), True, "Use a cell that begins with %%writefile, or the editor.")
    options = options_of(script.read_text())
    for name, value in (("nodes", "2"), ("ntasks-per-node", "1"), ("signal", "B:TERM@120")):
        expect(f"--{name}", options.get(name, "missing"), value, "Do not change the correct options.")
    expect("--exclusive", "exclusive" in options, True, "Do not change the correct options.")
    hint = "sbatch reads #SBATCH only before the first command."
    expect("--requeue, as sbatch reads the script", "requeue" in options, True, hint)
    hint = "What does the second start do to the log of the first one?"
    expect("--open-mode", options.get("open-mode", "missing"), "append", hint)
    output = options.get("output", f"{options.get('job-name')}-%j")
    expect("--output is a separate file for each job", "%j" in output, True, "%j is the ID of the job.")
    calls = record_calls(script)
    first, second, other = (words for _, words in calls)
    hint = "With B:, Slurm signals the process of the script only. Which process is this while launch runs?"
    expect("the script replaces itself with launch (exec)", [same for same, _ in calls], [True] * 3, hint)
    for option, why in (("--out", "contains logs"), ("--ip_config", "may list other nodes")):
        hint = f"That of the first start {why}. SLURM_RESTART_COUNT is set only in later starts."
        expect(f"{option} of the second start is new", _value(first, option) != _value(second, option), True, hint)
    saved = [_value(words, "--checkpoint") for words in (first, second, other)]
    hint = "Does /dev/shm keep its files when another job gets the node?"
    expect("--checkpoint is on a shared disk", not saved[0].startswith(("/dev/", "/tmp/")), True, hint)
    hint = "How does the second start find the checkpoint of the first one?"
    expect("checkpoint of the second start", saved[1], saved[0], hint)
    expect("another job has a separate checkpoint", saved[2] != saved[0], True, "Use SLURM_JOB_ID in its name.")


GB = 10**9
ARGUMENTS = ("graph", "node_memory", "cores", "trainers", "samplers", "process")
# arguments -> nodes, shm, memory, threads and clients, or None if no number of nodes is enough
SIZES: tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...] = (
    ((10 * GB, 64 * GB, 16, 4, 0, 2 * GB), (1, 10 * GB, 20 * GB, 3, 4)),
    ((105 * GB, 128 * GB, 32, 4, 1, 6 * GB), (3, 35 * GB, 89 * GB, 6, 24)),
    ((100, 100, 4, 1, 0, 15), (2, 50, 80, 3, 2)),
    ((101, 100, 4, 1, 0, 15), (3, 34, 64, 3, 3)),
    ((1000 * GB, 256 * GB, 8, 8, 2, 1 * GB), (6, 166_666_666_667, 191_666_666_667, 1, 144)),
    ((10 * GB, 32 * GB, 16, 4, 0, 6 * GB), None),
    ((10, 100, 16, 3, 0, 20), None),
)
HINTS = {
    "nodes": "smallest number for which graph / nodes + processes fit into four fifths of a node",
    "shm": "graph / nodes, rounded up",
    "memory": "shm + (1 server + trainers x (1 + samplers)) x process",
    "threads": "(cores - 1 - trainers x samplers) // trainers, at least 1",
    "clients": "nodes x trainers x (1 + samplers)",
}


@exercise(3)
def check_size_job(size_job: Callable[..., Any]) -> None:
    """Exercise 3: nodes, memory, threads and clients of a job."""
    for values, expected in SIZES:
        counts = dict(zip(ARGUMENTS, values, strict=True))
        where = ", ".join(f"{name} {value:,}" for name, value in counts.items())
        got = size_job(**counts)
        if expected is None:
            hint = "The processes alone need four fifths of the memory or more."
            expect(f"{where}: result", got, None, hint)
            continue
        expect_type(f"{where}: type of the result", got, "dict")
        for name, value in zip(HINTS, expected, strict=True):
            expect(f"{where}: {name}", plain(got.get(name, "missing")), value, HINTS[name])
