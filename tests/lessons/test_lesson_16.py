"""The checkers of lesson 16 distinguish right and wrong answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from solution_support import NOTEBOOKS, answer_tests, read_program, solutions

from support.exercises import lesson_16

size_job = solutions("16").size_job
LOSSES = [4.0, 2.0, 1.5, 1.25, 1.0]
EPOCHS = [{"epoch": k, "loss": loss} for k, loss in enumerate(LOSSES)]
DONE = ["7 COMPLETED", "8 COMPLETED"]


@pytest.fixture
def chain(tmp_path: Path) -> Callable[[Any], tuple[Any, ...]]:
    """Return the first job, the jobs named chain, and the epochs that they wrote."""

    def write(answer: Any) -> tuple[Any, ...]:
        first, jobs, epochs = answer
        program = tmp_path / "exercise_16_1.sh"
        program.write_text("")
        (tmp_path / "out").mkdir()
        if epochs is not None:
            (tmp_path / "out" / "exercise_16_1.json").write_text(json.dumps({"epochs": epochs}))
        return str(program), first, jobs, EPOCHS

    return write


WRONG_CHAINS = {
    "not submitted": ((None, [], None), "the job was submitted"),
    "one job does it all": (("7", DONE[:1], EPOCHS[:4]), "jobs named chain.*\n +got +1\n"),
    "it never stops": (("7", [*DONE, "9 COMPLETED"], EPOCHS[:4]), "jobs named chain.*\n +got +3\n"),
    "of an earlier try": (("8", DONE, EPOCHS[:4]), "jobs named chain"),
    "one failed": (("7", ["7 COMPLETED", "8 FAILED"], EPOCHS[:4]), "states of these jobs"),
    "no result": (("7", DONE, None), "has written a result"),
    "begins anew": (("7", DONE, EPOCHS[:2]), "epochs in the result"),
    "another seed": (
        ("7", DONE, [{**each, "loss": each["loss"] + 0.01} for each in EPOCHS[:4]]),
        "losses, compared with",
    ),
    "another batch size in the second job": (("7", DONE, [*EPOCHS[:2], *EPOCHS[3:]]), "losses, compared with"),
}


CHAINS = {
    "at once": ("7", DONE, EPOCHS[:4]),
    "after other tries": ("7", ["2 FAILED", "5 COMPLETED", *DONE], EPOCHS[:4]),
}
test_right_chain, test_wrong_chain = answer_tests(lesson_16.check_chain, CHAINS, WRONG_CHAINS, "chain")


def edit(source: str, *changes: tuple[str, str]) -> str:
    """Return a script after replacements of text that it must contain."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


BROKEN = (NOTEBOOKS / "scripts" / "broken_job.sh").read_text()
MENDED = read_program("16", "exercise_16_2.sh")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str]]:
    def write(text: str) -> tuple[str]:
        if "sleep 60" in text:
            monkeypatch.setattr(lesson_16, "SCRIPT_SECONDS", 1)
        (tmp_path / "exercise_16_2.sh").write_text(text)
        return (str(tmp_path / "exercise_16_2.sh"),)

    return write


TRAIN_JOB = (NOTEBOOKS / "scripts" / "train_job.sh").read_text()
RIGHT_SCRIPTS = {
    "the solution": MENDED,
    "options in one line": edit(
        MENDED, ("#SBATCH --open-mode=append\n", ""), ("--requeue", "--requeue --open-mode append")
    ),
    "a short option": edit(MENDED, ("--output=scripts/out/16/night-%j.log", "-o night-%j.log")),
    "time in the names": edit(MENDED, ("-${SLURM_RESTART_COUNT:-0}", "-${SLURM_RESTART_COUNT:-0}-$(date +%N)")),
    "python3": edit(MENDED, ("exec python ", "exec python3 ")),
    "the lesson's own, with the signal": edit(
        TRAIN_JOB, ("#SBATCH --requeue\n", "#SBATCH --requeue --signal=B:TERM@120\n")
    ),
}
WRONG_SCRIPTS = {
    "the broken one": (BROKEN, "--requeue, as sbatch reads the script"),
    "requeue below a command": (
        edit(MENDED, ("#SBATCH --requeue\n", ""), ("THREADS=1\n", "THREADS=1\n#SBATCH --requeue\n")),
        "--requeue, as sbatch reads the script",
    ),
    "the log is begun anew": (edit(MENDED, ("#SBATCH --open-mode=append\n", "")), "--open-mode"),
    "one log for all jobs": (edit(MENDED, ("night-%j", "night")), "separate file for each job"),
    "no exec": (edit(MENDED, ("exec ", "")), "the script replaces itself with launch"),
    "one run folder": (edit(MENDED, ("-${SLURM_RESTART_COUNT:-0}", "")), "--out of the second start is new"),
    "one address file": (edit(MENDED, ("$start.txt", "$files/ip.txt")), "--ip_config of the second start is new"),
    "memory of a node": (edit(MENDED, ("saved=$files", "saved=/dev/shm")), "--checkpoint is on a shared disk"),
    "a checkpoint for each start": (
        edit(MENDED, ("saved=$files/night-$SLURM_JOB_ID", "saved=$start")),
        "of the second start",
    ),
    "a checkpoint for all jobs": (edit(MENDED, ("night-$SLURM_JOB_ID.pt", "night.pt")), "a separate checkpoint"),
    "another signal": (edit(MENDED, ("B:TERM@120", "TERM@120")), "--signal"),
    "shared nodes": (edit(MENDED, ("#SBATCH --exclusive\n", "")), "--exclusive"),
    "nothing is called": (edit(MENDED, ("exec ", "exit; exec ")), "calls python"),
    "it hangs": (edit(MENDED, ("exec ", "sleep 60; exec ")), "Your code raised TimeoutExpired"),
}


test_right_script, test_wrong_script = answer_tests(lesson_16.check_script, RIGHT_SCRIPTS, WRONG_SCRIPTS, "script")


def _with(**changes: Callable[[dict[str, int], dict[str, int]], int]) -> Callable[..., Any]:
    """Return the solution with some numbers replaced by functions of the question and the right answer."""

    def wrong(**asked: int) -> Any:
        right = size_job(**asked)
        return right and right | {name: change(asked, right) for name, change in changes.items()}

    return wrong


WRONG_SIZES = {
    "stub": (lambda **_: None, "type of the result"),
    "a tuple": (lambda **asked: tuple((size_job(**asked) or {}).values()), "type of the result"),
    "all of the memory": (
        lambda **asked: size_job(**{**asked, "node_memory": asked["node_memory"] * 5 // 4}),
        r"graph 105,000,000,000.*nodes",
    ),
    "samplers forgotten": (_with(clients=lambda a, r: r["nodes"] * a["trainers"]), "clients"),
    "clients of one node": (_with(clients=lambda a, _: a["trainers"] * (1 + a["samplers"])), "clients"),
    "no thread left": (
        _with(threads=lambda a, _: (a["cores"] - 1 - a["trainers"] * a["samplers"]) // a["trainers"]),
        "threads",
    ),
    "the whole graph on each": (_with(shm=lambda a, _: a["graph"]), "shm"),
    "rounded down": (_with(shm=lambda a, r: a["graph"] // r["nodes"]), r"graph 101.*shm"),
    "memory of processes alone": (_with(memory=lambda _, r: r["memory"] - r["shm"]), "memory"),
    "always one": (_with(nodes=lambda *_: 1), "nodes"),
    "never says no": (
        lambda **asked: size_job(**asked) or dict.fromkeys(("nodes", "shm", "memory", "threads", "clients"), 1),
        "process 6,000,000,000: result\n",
    ),
}


def as_tensors(**asked: int) -> Any:
    return (found := size_job(**asked)) and {name: torch.tensor(value) for name, value in found.items()}


test_right_sizes, test_wrong_sizes = answer_tests(lesson_16.check_size_job, [size_job, as_tensors], WRONG_SIZES)
