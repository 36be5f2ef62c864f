"""The blind diagnoses of lesson 7. The sealed programs fail as described, and the checkers reject guesses."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from solution_support import NOTEBOOKS, answer_tests, solutions

from support.exercises import lesson_07, sealed

SOLUTION = solutions("07")
WRONG = {
    "nothing": ({"rank": ..., "waits for": ..., "step": ..., "cause": ...}, "'rank' is still ..."),
    "another rank": ({"rank": 0}, "'rank' is wrong\n  got       0\n  hint: "),
}
WRONG_HANG = {
    **WRONG,
    "swapped": ({**SOLUTION.HANG, "rank": 2, "waits for": 1}, "'rank' is wrong\n  got       2"),
    "waits for another": ({**SOLUTION.HANG, "waits for": 0}, "'waits for' is wrong\n  got       0(.|\n)*Recv-Q"),
    "dead rank": ({**SOLUTION.HANG, "cause": "b"}, "'cause' is wrong\n  got       'b'"),
    "no key": ({"rank": 1}, "Your code raised KeyError: 'waits for'"),
}
WRONG_NUMBER = {
    **WRONG,
    "the last whole step": ({**SOLUTION.NUMBER, "step": 2}, "'step' is wrong\n  got       2"),
    "a seed": ({**SOLUTION.NUMBER, "cause": "a"}, "'cause' is wrong\n  got       'a'"),
}
test_right_hang, test_wrong_hang = answer_tests(lesson_07.check_hang, [SOLUTION.HANG], WRONG_HANG)
test_right_number, test_wrong_number = answer_tests(lesson_07.check_number, [SOLUTION.NUMBER], WRONG_NUMBER)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "scripts" / "out").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS), str(NOTEBOOKS.parent)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path / "scripts" / "out"
    sealed.stop()


def logs(out: Path, name: str, ranks: int) -> list[str]:
    return [(out / f"{name}-{rank}.log").read_text() for rank in range(ranks)]


@pytest.mark.whole_run
@pytest.mark.usefixtures("nothing_left")
def test_first_sealed_program_hangs(out):
    """In the printed stacks, rank 1 waits for bytes of rank 2, and the other ranks wait in an all-reduce."""
    pids = sealed.start("hang", 3)
    sealed.wait_until_quiet("hang", 2)
    assert all("step 7: computes" in text for text in logs(out, "hang", 3)[::2])
    for pid in pids:
        os.kill(pid, 10)
    time.sleep(1)
    texts = logs(out, "hang", 3)
    assert all(process.poll() is None for process in sealed.RUNNING)
    assert ["in receive" in text for text in texts] == [False, True, False]
    assert ["in average_gradients" in text for text in texts] == [True, False, True]
    assert "4 local rows, 3 remote rows" in texts[1]


@pytest.mark.whole_run
@pytest.mark.usefixtures("nothing_left")
def test_second_sealed_program_prints_wrong_number(out):
    means = {}
    for ranks, nodes in ((1, 26), (3, 26), (1, 24), (3, 24)):
        sealed.start("number", ranks, nodes)
        sealed.wait(100)
        texts = logs(out, "number", ranks)
        means[ranks, nodes] = [re.findall(r"mean loss (\S+)", text) for text in texts]
        assert ["step 3," in text for text in texts] == [nodes == 26 and rank < 2 for rank in range(ranks)]
    assert means[3, 24] == means[1, 24] * 3
    assert means[3, 26][0] == means[3, 26][1] != means[1, 26][0]


def test_sealed_program_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, "FOLDER", tmp_path)
    sealed.write_source("new", "print('ü')\n" * 40)
    assert "print" not in (tmp_path / "new.txt").read_text()
    assert sealed.read_source("new") == "print('ü')\n" * 40
