"""Pieces that learners write: current notebooks, public tests that detect errors, and ``check``."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import make_holes
from support import pieces
from support.estimates import compare_estimate

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "notebooks" / "scripts"
PIECES = sorted(path.stem.removeprefix("test_") for path in (SCRIPTS / "tests").glob("test_*.py"))
BATCH_SCRIPTS = {"job_sbatch": "job.sbatch"}  # pieces that are not modules
WRONG = yaml.safe_load((Path(__file__).parent / "wrong.yaml").read_text())
# Runs the public tests on each of the given folders until one fails, in forks of one process that has imported DGL.
# Tests that name the changed function run first. A wrong body usually fails there, so the other tests do not run.
DRIVER = """
import inspect, os, signal, sys
import dgl, pytest, torch, torch._dynamo  # the first optimizer would import _dynamo in each fork

class ByName:
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: name.rsplit(".")[-1] not in inspect.getsource(item.function))

for folder, name in zip(sys.argv[2::2], sys.argv[3::2]):
    if (pid := os.fork()) == 0:
        signal.alarm(200)
        paths = f"pythonpath={folder} {os.path.abspath('scripts')} .."  # a piece can import other pieces
        words = ["-x", "-q", "-o", paths, "-o", "faulthandler_timeout=150", f"scripts/tests/test_{sys.argv[1]}.py"]
        os._exit(pytest.main(words, [ByName()]))
    print("\\nexit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def file_of(piece: str) -> str:
    return BATCH_SCRIPTS.get(piece, f"{piece}.py")


def holes_of(piece: str) -> list[str]:
    """Return the holes of a piece from the metadata of its cells."""
    found = []
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if "".join(cell["source"]).startswith(f"%%writefile scripts/mine/{file_of(piece)}\n"):
                found += cell["metadata"]["holes"]
    return found


def fill(piece: str, solution: str) -> str:
    """Replace the bodies of the holes by the bodies of the functions of the same names in a second solution."""
    lines = (SCRIPTS / file_of(piece)).read_text().splitlines()
    if piece in BATCH_SCRIPTS:
        spans, others = (make_holes.marked_lines(text) for text in ("\n".join(lines), solution))
        for name in sorted(holes_of(piece), key=lambda name: -spans[name][0]):
            (first, last), (begin, end) = spans[name], others[name]
            lines[first - 1 : last] = solution.splitlines()[begin - 1 : end]
        return "\n".join(lines) + "\n"
    others, other_lines = make_holes.functions(solution), solution.splitlines()
    course = make_holes.functions("\n".join(lines))
    for name in sorted(holes_of(piece), key=lambda name: -course[name].lineno):
        first, last = make_holes.body_lines(course[name])
        body = others[name].body
        lines[first - 1 : last] = other_lines[body[0].lineno - 1 : body[-1].end_lineno]
    imports = [line for line in other_lines if line.startswith(("import ", "from "))]
    return "\n".join([*imports, *lines]) + "\n"


def exit_codes(piece: str, sources: list[tuple[str, str]], folder: Path) -> list[int]:
    """Return pytest's exit code for each of several sources of a piece, given with the name of a function in it."""
    command = [sys.executable, "-c", DRIVER, piece]
    for number, (source, name) in enumerate(sources):
        (path := folder / str(number)).mkdir()
        (path / file_of(piece)).write_text(source)
        command += [str(path), name]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}  # as ``check``
    environment["CI"] = "true"  # pytest then writes whole differences, and takes minutes for those of long lists
    # The driver must have no other thread when it forks, because a fork also copies the locks that a thread holds.
    environment |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    done = subprocess.run(command, cwd=SCRIPTS.parent, env=environment, capture_output=True, text=True, timeout=880)
    codes = [int(code) for code in re.findall(r"^exit code (-?\d+)$", done.stdout, re.MULTILINE)]
    assert len(codes) == len(sources), done.stderr
    assert -signal.SIGALRM not in codes, done.stderr  # the stacks of a run that hangs
    return codes


def test_no_notebook_is_stale():
    command = [sys.executable, str(ROOT / "scripts" / "make_holes.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("", 0)


SOURCE = '''"""A piece."""


class Counter:
    # a comment outside
    def add(self, a, b):
        """Return the sum."""
        # a comment inside
        total = a
        return total + b

    def given(self):
        return 1
'''


def test_hole_replaces_only_the_body():
    body = "        # a comment inside\n        total = a\n        return total + b"
    expected = SOURCE.rstrip().replace(body, "        ...  # your code here")
    assert make_holes.make_holes(SOURCE, ["Counter.add"]) == expected
    for name in ("Counter.sub", "Counter.given"):
        with pytest.raises(ValueError, match=r"has no function Counter\.sub|given cannot be a hole"):
            make_holes.make_holes(SOURCE, [name])


def test_hole_of_a_batch_script():
    script = "#!/bin/bash\n# hole: first\necho 1\n\necho 2\n# end of hole\n# hole: second\n:\n# end of hole\n"
    with_hole = script.replace("echo 1\n\necho 2", "# your lines here").rstrip()
    assert make_holes.make_holes(script, ["first"]) == with_hole
    assert pieces._empty_functions(with_hole) == {"first": 0}
    with pytest.raises(ValueError, match="has no function third, only first, second"):
        make_holes.make_holes(script, ["third"])


@pytest.mark.whole_run
@pytest.mark.timeout(900)
@pytest.mark.parametrize("piece", PIECES)
def test_the_public_tests_accept_solutions_and_reject_wrong_bodies(piece, tmp_path):
    """The course's piece and a second solution pass, the holes fail, and each plausible wrong body fails."""
    source, holes = (SCRIPTS / file_of(piece)).read_text(), holes_of(piece)
    assert sorted(WRONG[piece]) == sorted(holes)
    assert min(len(changes) for changes in WRONG[piece].values()) >= 3
    changes = [(hole, *pair) for hole in holes for change in WRONG[piece][hole] for pair in change.items()]
    assert [old for _, old, _ in changes if source.count(old) == 0] == []
    second = (Path(__file__).parent / "second" / file_of(piece)).read_text()
    whole = [source, fill(piece, second), make_holes.make_holes(source, holes)]
    wrong = [(source.replace(old, new), hole) for hole, old, new in changes]
    codes = exit_codes(piece, [*((text, holes[0]) for text in whole), *wrong], tmp_path)
    assert codes[:2] == [0, 0]
    passing = [change for change, code in zip(["holes", *changes], codes[2:], strict=True) if code != 1]
    assert passing == []


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """The folder of a lesson with a small piece ``twice``, and the folder of the course."""
    course = tmp_path / "course"
    (course / "tests").mkdir(parents=True)
    (course / "mine").mkdir()
    (course / "twice.py").write_text('def twice(x):\n    """Return 2 x."""\n    return 2 * x\n')
    test = 'from twice import twice\n\n\ndef test_twice():\n    """Add x to x."""\n    got, expected = twice(3), 6\n'
    (course / "tests" / "test_twice.py").write_text(f"{test}    assert got == expected\n")
    shutil.copy(SCRIPTS / "tests" / "pytest.ini", course / "tests")
    (tmp_path / "work").mkdir()
    shutil.copytree(course, tmp_path / "work" / "scripts")
    monkeypatch.setattr(pieces, "COURSE", course)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def check(capsys, body: str, **options: Any) -> str:
    Path("scripts/mine/twice.py").write_text(f'def twice(x):\n    """Return 2 x."""\n{body}\n')
    pieces.check("twice", **options)
    return capsys.readouterr().out


COURSE_S = "The lessons use the course's twice.py.\n"


def test_check_explains(work, capsys):
    printed = check(capsys, "    ...  # your code here")
    assert printed == f"twice.py: not yet. 0 of 1 tests pass.\n  not written yet: twice\n{COURSE_S}"
    printed = check(capsys, "    return x + 2")
    values = "  test_twice\n    got       5\n    expected  6\n    hint: Add x to x.\n"
    assert printed == f"twice.py: not yet. 0 of 1 tests pass.\n{values}{COURSE_S}"
    printed = check(capsys, "    return x.double()")
    assert (
        "AttributeError: 'int' object has no attribute 'double'\n    line 3 of your file:  return x.double()" in printed
    )
    assert "not yet. SyntaxError" in check(capsys, "    return (")
    assert "E   NameError: name 'y' is not defined" in check(capsys, "    return x\n\n\nz = y")
    pieces.check("twice", "scripts/mine/none.py")
    assert "not yet. FileNotFoundError" in capsys.readouterr().out


def test_check_ends_endless_loop(work, capsys):
    printed = check(capsys, "    while x:\n        pass", seconds=3)
    assert "  test_twice\n  The test did not end within 3 s." in printed


def test_piece_is_copied_only_into_learner_folder(work, capsys, monkeypatch):
    mine = "    return x + x"
    assert check(capsys, mine) == f"twice.py: correct. All 1 tests pass.\n{COURSE_S}"
    (work / ".copied.json").write_text("{}")
    pieces.check("twice", "scripts/mine/twice.py")  # a solution notebook names its file
    assert capsys.readouterr().out == "twice.py: correct. All 1 tests pass.\n"
    assert Path("scripts/twice.py").read_text() == (pieces.COURSE / "twice.py").read_text()

    monkeypatch.setitem(sys.modules, "scripts.twice", pytest)
    assert "The lessons use your twice.py. restore" in check(capsys, mine)
    assert "scripts.twice" not in sys.modules  # the next import reads the new file
    assert mine in Path("scripts/twice.py").read_text()
    assert mine not in (pieces.COURSE / "twice.py").read_text()
    assert "The lessons use your twice.py" in check(capsys, "    return 3 * x")  # the last version that passed
    pieces.restore("twice")
    assert capsys.readouterr().out == COURSE_S
    assert "3 * x" in Path("scripts/mine/twice.py").read_text()


@pytest.mark.parametrize(
    ("estimate", "printed"),
    [
        (..., "The measurement is 10 MB. Replace the dots"),
        (10.2, "They differ by 2.0%."),
        (80, "A byte has 8 bits."),
        (20, "a factor of 2"),
        (10e6, "Bytes and MB differ"),
        (30, "The estimate is 3 times the measurement.\nThree copies?"),
        (0, "The estimate is 0 times the measurement.\nNo copy?"),
        ("ten", "must be a number, and it is 'ten'"),
    ],
)
def test_estimates(estimate, printed, capsys):
    compare_estimate(estimate, 10.0, "MB", mistakes={3.0: "Three copies?", 0: "No copy?"})
    assert printed in capsys.readouterr().out
    compare_estimate(estimate, 10.0, "MB", mistakes={3.0: "Three copies?", 0: "No copy?"}, label="upper limit")
    assert printed.replace("measurement", "upper limit") in capsys.readouterr().out
