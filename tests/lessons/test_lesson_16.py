"""The checkers of lesson 16 know right from wrong; what its scripts say to Slurm; its picture; where it is skipped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from program_support import changed, scripts_in, written
from solution_support import NOTEBOOKS, assert_not_yet, solutions, verdict

from support.exercises import lesson_16
from support.plots import real_clusters as plots

size_job = solutions("16").size_job
LOSSES = [4.0, 2.0, 1.5, 1.25, 1.0]
EPOCHS = [{"epoch": k, "loss": loss} for k, loss in enumerate(LOSSES)]
DONE = ["7 COMPLETED", "8 COMPLETED"]


@pytest.fixture
def chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the checker says of jobs with the name chain, and of the epochs that they have written."""

    def judge(first: str | None, jobs: list[str], epochs: list[dict[str, Any]] | None) -> str:
        program = tmp_path / "exercise_16_1.sh"
        program.write_text("")
        (tmp_path / "out").mkdir()
        if epochs is not None:
            (tmp_path / "out" / "exercise_16_1.json").write_text(json.dumps({"epochs": epochs}))
        lesson_16.check_chain(str(program), first, jobs, EPOCHS)
        return capsys.readouterr().out

    return judge


@pytest.mark.parametrize("jobs", [DONE, ["2 FAILED", "5 COMPLETED", *DONE]], ids=["at once", "after other tries"])
def test_right_chain(jobs, chain):
    assert chain("7", jobs, EPOCHS[:4]) == "Exercise 1: correct\n"


WRONG_CHAINS = {
    "not submitted": ((None, [], None), "you have submitted it"),
    "one job does it all": (("7", DONE[:1], EPOCHS[:4]), "jobs with the name chain.*\n +got +1\n"),
    "it never stops": (("7", [*DONE, "9 COMPLETED"], EPOCHS[:4]), "jobs with the name chain.*\n +got +3\n"),
    "of an earlier try": (("8", DONE, EPOCHS[:4]), "jobs with the name chain"),
    "one failed": (("7", ["7 COMPLETED", "8 FAILED"], EPOCHS[:4]), "their states"),
    "no result": (("7", DONE, None), "has written a result"),
    "begins anew": (("7", DONE, EPOCHS[:2]), "epochs in the result"),
    "another seed": (("7", DONE, [{**each, "loss": each["loss"] + 0.01} for each in EPOCHS[:4]]), "its losses"),
    "another batch size in the second job": (("7", DONE, [*EPOCHS[:2], *EPOCHS[3:]]), "its losses"),
}


@pytest.mark.parametrize(("answer", "says"), WRONG_CHAINS.values(), ids=WRONG_CHAINS.keys())
def test_wrong_chain(answer, says, chain):
    assert_not_yet(chain(*answer), says)


BROKEN = (NOTEBOOKS / "scripts" / "broken_job.sh").read_text()
MENDED = written("16", "exercise_16_2.sh")


@pytest.fixture
def judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """What the checker says of a batch script."""

    def judge(script: str) -> str:
        path = tmp_path / "exercise_16_2.sh"
        path.write_text(script)
        return verdict(capsys, lesson_16.check_script, str(path))

    return judge


RIGHT_SCRIPTS = {
    "the solution": MENDED,
    "options in one line": changed(
        MENDED, ("#SBATCH --open-mode=append\n", ""), ("--requeue", "--requeue --open-mode append")
    ),
    "a short option": changed(MENDED, ("--output=scripts/out/16/night-%j.log", "-o night-%j.log")),
    "time in the names": changed(MENDED, ("-${SLURM_RESTART_COUNT:-0}", "-${SLURM_RESTART_COUNT:-0}-$(date +%N)")),
    "python3": changed(MENDED, ("exec python ", "exec python3 ")),
}
WRONG_SCRIPTS = {
    "the broken one": (BROKEN, "--requeue, as sbatch reads the script"),
    "requeue below a command": (
        changed(MENDED, ("#SBATCH --requeue\n", ""), ("THREADS=1\n", "THREADS=1\n#SBATCH --requeue\n")),
        "--requeue, as sbatch reads the script",
    ),
    "the log is begun anew": (changed(MENDED, ("#SBATCH --open-mode=append\n", "")), "--open-mode"),
    "one log for all jobs": (changed(MENDED, ("night-%j", "night")), "another file for each job"),
    "no exec": (changed(MENDED, ("exec ", "")), "the script's process becomes that of launch"),
    "one run folder": (changed(MENDED, ("-${SLURM_RESTART_COUNT:-0}", "")), "--out of the second start is new"),
    "one address file": (changed(MENDED, ("$start.txt", "$files/ip.txt")), "--ip_config of the second start is new"),
    "memory of a node": (changed(MENDED, ("saved=$files", "saved=/dev/shm")), "on a disk that all nodes share"),
    "a checkpoint for each start": (
        changed(MENDED, ("saved=$files/night-$SLURM_JOB_ID", "saved=$start")),
        "of the second start",
    ),
    "a checkpoint for all jobs": (changed(MENDED, ("night-$SLURM_JOB_ID.pt", "night.pt")), "a checkpoint of its own"),
    "another signal": (changed(MENDED, ("B:TERM@120", "TERM@120")), "--signal"),
    "shared nodes": (changed(MENDED, ("#SBATCH --exclusive\n", "")), "--exclusive"),
    "nothing is called": (
        "#!/bin/bash\n" + "".join(f"{line}\n" for line in MENDED.splitlines() if "SBATCH" in line),
        "calls python",
    ),
    "it hangs": (changed(MENDED, ("exec ", "sleep 60; exec ")), "TimeoutExpired"),
}


@pytest.mark.parametrize("script", RIGHT_SCRIPTS.values(), ids=RIGHT_SCRIPTS.keys())
def test_right_script(script, judged):
    assert judged(script) == "Exercise 2: correct\n"


@pytest.mark.parametrize(("script", "says"), WRONG_SCRIPTS.values(), ids=WRONG_SCRIPTS.keys())
def test_wrong_script(script, says, judged, monkeypatch):
    monkeypatch.setattr(lesson_16, "SCRIPT_SECONDS", 1)
    said = judged(script)
    assert said.startswith("Exercise 2: not yet")
    assert says in said


def _with(**changes: Callable[[dict[str, int], dict[str, int]], int]) -> Callable[..., Any]:
    """The solution with some of its numbers computed otherwise: from what was asked, and from the right answer."""

    def wrong(**asked: int) -> Any:
        right = size_job(**asked)
        return right and right | {name: change(asked, right) for name, change in changes.items()}

    return wrong


WRONG_SIZES = {
    "stub": (lambda **_: None, "what came back"),
    "a tuple": (lambda **asked: tuple((size_job(**asked) or {}).values()), "what came back"),
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
        "what came back",
    ),
}


def test_right_sizes(capsys):
    assert verdict(capsys, lesson_16.check_size_job, size_job) == "Exercise 3: correct\n"
    as_tensors = lambda **asked: (found := size_job(**asked)) and {k: torch.tensor(v) for k, v in found.items()}  # noqa: E731
    assert verdict(capsys, lesson_16.check_size_job, as_tensors) == "Exercise 3: correct\n"


@pytest.mark.parametrize(("answer", "says"), WRONG_SIZES.values(), ids=WRONG_SIZES.keys())
def test_wrong_sizes(answer, says, capsys):
    assert_not_yet(verdict(capsys, lesson_16.check_size_job, answer), says)


def test_the_lesson_s_script_would_pass_its_own_exercise(tmp_path, capsys):
    """train_job.sh, but for the signal that it does not ask for."""
    script = scripts_in(tmp_path) / "train_job.sh"
    script.write_text(changed(script.read_text(), ("#SBATCH --requeue\n", "#SBATCH --requeue --signal=B:TERM@120\n")))
    lesson_16.check_script(str(script))
    assert capsys.readouterr().out == "Exercise 2: correct\n"


def test_the_picture_shows_the_states_one_after_the_other():
    running, waiting = {"3": "RUNNING"}, {"3": "PENDING", "4": "RUNNING"}
    seen = [
        (10.0, running),
        (12.0, running),
        (15.0, waiting),
        (16.0, {"3": "PENDING", "4": "COMPLETED"}),
        (18.0, running),
    ]
    assert plots.spans(seen, "3") == [("RUNNING", 0, 5), ("PENDING", 5, 8), ("RUNNING", 8, 8)]
    assert plots.spans(seen, "4") == [("RUNNING", 5, 6), ("COMPLETED", 6, 8)]
    left, right = plots.preempted(seen, {"3": "train.py", "4": "urgent"}, [LOSSES, LOSSES], 2).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["train.py", "urgent"]
    assert len(left.patches) == 4  # what is over is not drawn
    assert [
        line.get_ydata().tolist() if hasattr(line.get_ydata(), "tolist") else list(line.get_ydata())
        for line in right.lines[1:3]
    ] == [LOSSES[:2], LOSSES[2:]]
