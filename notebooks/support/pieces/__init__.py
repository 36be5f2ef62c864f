"""The pieces of the course's program: ``check`` tests the learner's file, and ``restore`` brings the course's back.

scripts/<piece>.py              the version that the course uses
scripts/mine/<piece>.py         the learner's file, written by a cell of a lesson
scripts/tests/test_<piece>.py   its tests, where the docstring of a test is a hint

The name of a batch script has its ending, as in ``job.sbatch``.
"""

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parents[2] / "scripts"
COPIES = Path(".copied.json")  # scripts/lab.py writes this file into the folder of the learner's copies


def check(piece: str, file: str = "", *, seconds: int = 120) -> None:
    """Test the learner's version of a piece and print the result.

    When all tests pass in the folder that ``make lab`` has made, the course uses the learner's version from then on.

    Args:
        piece: name of the piece, such as ``"sage"`` or ``"job.sbatch"``.
        file: file to test instead of ``scripts/mine/<piece>.py``. The course never uses this file.
        seconds: time limit of all tests.
    """
    path, name = Path(file or f"scripts/mine/{_file(piece)}"), _file(piece)
    try:
        source = path.read_text()
        empty = _empty_functions(source)
        count, results = _run_tests(piece, _with_errors(source, empty), seconds)
    except (OSError, SyntaxError) as error:
        print(f"{name}: not yet. {type(error).__name__}: {error}")
    except RuntimeError as error:
        print(f"{name}: not yet. {error}")
    else:
        passed = sum(result["passed"] for result in results)
        if passed == count and not empty:
            print(f"{name}: correct. All {count} tests pass.")
            if not file and COPIES.exists():
                _use(piece, path)
        else:
            print(f"{name}: not yet. {passed} of {count} tests pass.")
            if empty:
                print(f"  not written yet: {', '.join(empty)}")
            _print_failure(results, seconds)
    if not file:
        _print_version(piece)


def _file(piece: str) -> str:
    return piece if piece.endswith(".sbatch") else f"{piece}.py"


def restore(piece: str) -> None:
    """Let the course use its version of a piece again. The file in ``scripts/mine`` stays as it is."""
    if COPIES.exists():
        _use(piece, COURSE / _file(piece))
    _print_version(piece)


def _use(piece: str, path: Path) -> None:
    shutil.copy(path, f"scripts/{_file(piece)}")
    for name in (piece, f"scripts.{piece}"):  # the next import reads the new file
        sys.modules.pop(name, None)


def _print_version(piece: str) -> None:
    name = _file(piece)
    used, course = (folder.joinpath(name).read_text().rstrip() for folder in (Path("scripts"), COURSE))
    if used == course:
        print(f"The lessons use the course's {name}.")
    else:
        print(f'The lessons use your {name}. restore("{piece}") brings the course\'s file back.')


def _empty_functions(source: str) -> dict[str, int]:
    """Return the functions and methods that the learner has not written yet, with the line of their ``...``.

    In a batch script, these are the holes with the line "# your lines here".
    """
    empty = {}
    if source.startswith("#!"):
        return dict.fromkeys(re.findall(r"^# hole: (\w+)\n# your lines here$", source, re.MULTILINE), 0)
    nodes = [("", node) for node in ast.parse(source).body]
    for prefix, node in nodes:
        if isinstance(node, ast.ClassDef):
            nodes += [(f"{node.name}.", child) for child in node.body]
        elif isinstance(node, ast.FunctionDef) and ast.unparse(node.body[-1]) == "...":
            empty[prefix + node.name] = node.body[-1].lineno
    return empty


def _with_errors(source: str, empty: dict[str, int]) -> str:
    """Let empty functions raise an error, so that ``check`` can recognize the tests that call them."""
    lines = source.splitlines()
    for line in filter(None, empty.values()):
        lines[line - 1] = lines[line - 1].replace("...", "raise NotImplementedError", 1)
    return "\n".join(lines) + "\n"


def _run_tests(piece: str, source: str, seconds: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of tests, and a result for each test that was started (see ``plugin``).

    Raises:
        RuntimeError: pytest could not start the tests, for example because the file raises an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, _file(piece)).write_text(source)
        paths = shlex.join([folder, str(Path("scripts").resolve())])
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "support.pieces.plugin"]
        command += ["-o", f"pythonpath={paths}", f"scripts/tests/test_{piece.replace('.', '_')}.py"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment |= {"PIECE_FOLDER": folder, "PIECE_SECONDS": str(seconds), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also processes that the learner's code has started
        results_file = Path(folder, "results")
        if not results_file.exists():
            errors = [line for line in printed.splitlines() if line.startswith("E ")]
            if process.returncode == -signal.SIGALRM:
                errors = ["A loop outside the functions does not end."]
            raise RuntimeError("\n".join(["The tests cannot use your file.", *(errors or [printed])]))
        count, *lines = map(json.loads, results_file.read_text().splitlines())
    results = {line["test"]: line for line in lines}  # the end of a test replaces its start
    return count, list(results.values())


def _print_failure(results: list[dict[str, Any]], seconds: int) -> None:
    """Print the first failed test, apart from tests that call an empty function."""
    for result in results:
        if result["passed"] or result["empty"]:
            continue
        print(f"  {result['test']}")
        if "error" not in result:
            print(f"  The test did not end within {seconds} s. Which loop does not end, or which rank waits?")
        elif "got" in result:
            print(f"    got       {result['got']}\n    expected  {result['expected']}")
        else:
            print(f"    {result['error']}")
        print(f"    hint: {result['hint']}")
        return
