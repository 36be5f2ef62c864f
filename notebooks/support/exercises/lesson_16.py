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
from support.exercises.programs import result

PIECES = (2, 4)  # epochs after the first and after the second job of the chain


def check_chain(
    program: str, first: str | None, jobs: Sequence[str], undisturbed: Sequence[Mapping[str, float]]
) -> None:
    """Exercise 1: a training consists of two jobs, and the first job submits the second one.

    Args:
        program: path of the batch script. Its training has written ``out/PROGRAM.json``.
        first: number of the job that the learner submitted.
        jobs: number and state of each job with the name ``chain``, as ``squeue`` prints them.
        undisturbed: epochs of an uninterrupted job with the same options.
    """
    exercise(1)(lambda _: _check_chain(program, first, list(jobs), undisturbed))(None)


def _check_chain(program: str, first: str | None, jobs: list[str], undisturbed: Sequence[Mapping[str, float]]) -> None:
    expect(f"{program} is there", Path(program).exists(), True, "run the cell that begins with %%writefile")
    expect("you have submitted it", first is not None, True, "take away the # of the lines above")
    found = {words[0]: words[1] for words in (line.split() for line in jobs) if len(words) == 2}
    since = {job: state for job, state in found.items() if job.isdigit() and int(job) >= int(str(first))}
    hint = "#SBATCH --job-name=chain; and the script calls sbatch for itself, once, while there are fewer than 4"
    expect("jobs with the name chain, from yours on", len(since), len(PIECES), hint)
    hint = "read their logs; one that has failed must not submit another"
    expect("their states", sorted(since.values()), ["COMPLETED"] * len(PIECES), hint)
    epochs = result(program)["epochs"]
    hint = "--num_epochs says how many there are in all: $1"
    expect("epochs in the result", len(epochs), PIECES[-1], hint)
    losses = [rounded(epoch["loss"], 6) for epoch in epochs]
    expected = [rounded(epoch["loss"], 6) for epoch in undisturbed[: PIECES[-1]]]
    hint = "the same options as the first job, and the same --checkpoint in both jobs; is it of an earlier try?"
    expect("its losses, compared with the job that nobody interrupted", losses, expected, hint)


FAKE = '#!/bin/sh\nprintf "%s\\n" "$$" "$@" > "$NOTED"\n'
STARTS = (("7", ""), ("7", "1"), ("8", ""))  # job, restarts
SCRIPT_SECONDS = 20


def options_of(script: str) -> dict[str, str]:
    """Return the options of a batch script as ``sbatch`` reads them, which stops at the first command."""
    found: dict[str, str] = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            for k, word in enumerate(words):
                if word.startswith("--"):
                    name, _, value = word[2:].partition("=")
                    following = words[k + 1] if k + 1 < len(words) and not words[k + 1].startswith("-") else ""
                    found[name] = value or following
                elif word.startswith("-o"):
                    found["output"] = word[2:] or (words[k + 1] if k + 1 < len(words) else "")
    return found


def calls_of(script: Path) -> list[tuple[bool, list[str]]]:
    """Return how the script calls Python in each start: whether the script becomes Python itself, and the words."""
    found = []
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
            hint = "the last line calls python -m tutorial_lib launch"
            expect(f"job {job}: the script calls python", noted.exists(), True, hint)
            pid, *words = noted.read_text().splitlines()
            found.append((int(pid) == process.pid, words))
    return found


def _value(words: Sequence[str], option: str) -> str:
    """Return the value of an option, which may be a part of the command of a trainer."""
    found = re.search(rf"{option}[ =]+(\S+)", " ".join(words))
    expect(f"{option} is there", found is not None, True, "launch needs what the broken script gave it")
    return found[1] if found else ""


@exercise(2)
def check_script(program: str) -> None:
    """Exercise 2: a batch script survives a preemption."""
    script = Path(program)
    expect(f"{program} is there", script.exists(), True, "a cell that begins with %%writefile, or the editor")
    options = options_of(script.read_text())
    for name, value in (("nodes", "2"), ("ntasks-per-node", "1"), ("signal", "B:TERM@120")):
        expect(f"--{name}", options.get(name, "not there"), value, "keep what was right")
    expect("--exclusive", "exclusive" in options, True, "keep what was right")
    hint = "sbatch reads #SBATCH up to the first command, and no further"
    expect("--requeue, as sbatch reads the script", "requeue" in options, True, hint)
    hint = "what does the second start do to the log of the first one?"
    expect("--open-mode", options.get("open-mode", "not there"), "append", hint)
    output = options.get("output", f"{options.get('job-name')}-%j")
    expect("--output is another file for each job", "%j" in output, True, "%j is the number of the job")
    calls = calls_of(script)
    first, second, other = (words for _, words in calls)
    hint = "with B: the signal comes to the process of the script alone: who is that, while launch runs?"
    expect("the script's process becomes that of launch", [same for same, _ in calls], [True] * 3, hint)
    for option, why in (("--out", "has logs in it"), ("--ip_config", "may list other nodes")):
        hint = f"that of the first start {why}; SLURM_RESTART_COUNT is not set in the first start"
        expect(f"{option} of the second start is new", _value(first, option) != _value(second, option), True, hint)
    saved = [_value(words, "--checkpoint") for words in (first, second, other)]
    hint = "what is left of /dev/shm, when the node was given to somebody else?"
    expect("the checkpoint is on a disk that all nodes share", saved[0].startswith(("/dev/", "/tmp/")), False, hint)
    hint = "how does the second start find what the first one has saved?"
    expect("checkpoint of the second start", saved[1], saved[0], hint)
    expect("another job has a checkpoint of its own", saved[2] != saved[0], True, "SLURM_JOB_ID")


GB = 10**9
ASKED = ("graph", "node_memory", "cores", "trainers", "samplers", "process")
# the job, and its nodes, shm, memory, threads and clients. None: no number of nodes is enough
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
    "nodes": "the fewest for which graph / nodes + processes fit into four fifths of a node",
    "shm": "graph / nodes, rounded up",
    "memory": "shm + (1 server + trainers x (1 + samplers)) x process",
    "threads": "(cores - 1 - trainers x samplers) // trainers, and at least 1",
    "clients": "nodes x trainers x (1 + samplers)",
}


@exercise(3)
def check_size_job(size_job: Callable[..., Any]) -> None:
    """Exercise 3: nodes, memory, threads and clients of a job."""
    for asked, expected in SIZES:
        counts = dict(zip(ASKED, asked, strict=True))
        where = ", ".join(f"{name} {value:,}" for name, value in counts.items())
        got = size_job(**counts)
        if expected is None:
            hint = "processes x process is four fifths of the memory already, or more"
            expect(f"{where}: what came back", got, None, hint)
            continue
        expect_type(f"{where}: what came back", got, "dict")
        for name, value in zip(HINTS, expected, strict=True):
            expect(f"{where}: {name}", plain(got.get(name, "not there")), value, HINTS[name])
