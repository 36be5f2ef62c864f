"""Insert one bug at a time into a copy of the code, and run the tests that should detect it.

    python scripts/mutants.py [--count 160] [--seed 0] [--only sampling/feature_cache] [--list]

The script derives the bugs from the syntax tree, so they follow the code. The seed selects the same number from each
group of ``TARGETS``. A mutant is caught if the tests fail or take more than three times their usual time. The tests
without machines run first. The other tests run on the mutants that these did not catch, and are counted separately.
The exit code is 1 if fewer than 85 % are caught, without the mutants that ``MAY_SURVIVE`` explains.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MARKS = "not gpu and not browser and not root"
# Modules, and the tests that should detect a bug in them. {} stands for the name of the module.
TARGETS = {
    "tutorial_lib/tasks/link.py": ["tests/tasks/test_link.py"],
    "tutorial_lib/sampling/*.py": ["tests/sampling", "tests/models", "tests/trainer/test_step_events.py"],
    "tutorial_lib/trainer/checkpoint.py": ["tests/trainer/test_checkpoint.py", "tests/trainer/test_loop.py"],
    "tutorial_lib/trainer/manifest.py": ["tests/trainer/test_checkpoint.py"],
    "tutorial_lib/trainer/loop.py": ["tests/trainer/test_seeding.py", "tests/trainer/test_loop.py"],
    "tutorial_lib/partition/*.py": ["tests/partition", "tests/data/test_pairs.py", "tests/data/test_data_academic.py"],
    "tutorial_lib/tasks/task.py": [f"tests/tasks/test_{name}.py" for name in ("evaluation", "hetero", "tasks")],
    "tutorial_lib/launcher/agent.py": ["tests/launcher/test_agents.py", "tests/launcher/test_supervision.py"],
    "tutorial_lib/launcher/processes.py": ["tests/launcher/test_agents.py", "tests/launcher/test_supervision.py"],
    "tutorial_lib/job/remote_files.py": ["tests/job/test_remote_files.py"],
    "notebooks/support/exercises/lesson_*.py": ["tests/lessons/test_{}.py"],
}
STAGES = ("not cluster", "cluster")  # without machines, then with
NOTHING_TO_RUN = 5  # pytest's exit code
# Printed mutants, and why no test can or must detect them
MAY_SURVIVE = {
    "tutorial_lib/launcher/agent.py, _collect_exits: 1024  ->  (1025)": "the reported memory changes by a thousandth",
    "tutorial_lib/launcher/processes.py, end_descendants: time.monotonic() < deadline"
    "  ->  (time.monotonic() <= deadline)": "the moment of the deadline itself",
    "tutorial_lib/launcher/processes.py, end_descendants: time.sleep(POLL_SECONDS)  ->  pass": "it checks more often",
    "tutorial_lib/trainer/checkpoint.py, save: barrier()  ->  pass": "it waits for a rank that still writes rows",
    "tutorial_lib/tasks/task.py, source: 1  ->  (2)": "how far a thread is ahead changes no number",
    "tutorial_lib/sampling/pipeline.py, prefetch: future.cancel()  ->  pass": "it only saves unused work",
    "tutorial_lib/tasks/link.py, split_of_edges: point < self.test  ->  (point <= self.test)": "no pair has that hash",
    "tutorial_lib/sampling/neighbors.py, sample: bool(remote.any())  ->  (True)": "it only saves time",
    "tutorial_lib/launcher/processes.py, end_descendants: reap()  ->  pass": "all exit codes have been collected",
}
PAIRS = [(ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)]
PAIRS += [(ast.And, ast.Or), (ast.Add, ast.Sub)]
SWAPS = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}


class Mutant(NamedTuple):
    """A change of one expression or statement, the bytes begin to end of a file."""

    path: str
    function: str
    begin: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}, {self.function}: {' '.join(self.old.split())[:90]}  ->  {' '.join(self.new.split())[:90]}"


def mutate(node: ast.AST) -> Iterator[ast.AST]:
    """Yield wrong versions of a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.If):
        yield from (ast.Constant(True), ast.Constant(False))


def list_mutants(path: str) -> list[Mutant]:
    """Return the mutants of a file, outside annotations, decorators, error texts and module-level code."""
    source = (ROOT / path).read_bytes()
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    mutants: list[Mutant] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        for changed in mutate(node) if function else ():
            if isinstance(node, ast.Constant) and path.startswith("notebooks"):
                continue  # numbers in an exercise's checks are examples
            replaced = node.test if isinstance(node, ast.If) else node
            begin = starts[replaced.lineno - 1] + replaced.col_offset
            end = starts[replaced.end_lineno - 1] + replaced.end_col_offset
            new = f"({ast.unparse(changed)})" if isinstance(changed, ast.expr) else ast.unparse(changed)
            mutants.append(Mutant(path, function, begin, end, source[begin:end].decode(), new))
        for child in ast.iter_child_nodes(node):
            visit(child, node.name if isinstance(node, ast.FunctionDef) else function)

    tree = ast.parse(source)
    for node in ast.walk(tree):  # no mutants in these fields
        vars(node).update({name: None for name in ("annotation", "returns") if hasattr(node, name)})
        vars(node).update({name: [] for name in ("decorator_list", "bases") if hasattr(node, name)})
    visit(tree, "")
    return mutants


def select_tests(path: str) -> tuple[str, ...]:
    """Return the arguments of pytest for a file."""
    words = next(words for pattern, words in TARGETS.items() if Path(path).match(pattern))
    return tuple(word.format(Path(path).stem) for word in words)


def run_tests(
    copies: Queue[Path], words: Sequence[str], stage: str, limit: float, mutant: Mutant | None = None
) -> tuple[bool, float]:
    """Run tests in a copy of the code with this mutant. Return whether they passed in time, and the seconds."""
    copy, start = copies.get(), time.monotonic()
    source = (copy / mutant.path).read_bytes() if mutant else b""
    if mutant:
        (copy / mutant.path).write_bytes(source[: mutant.begin] + mutant.new.encode() + source[mutant.end :])
    # Like a worker of the test suite, with separate processes, network and /dev/shm
    alone = [sys.executable, str(ROOT / "tests" / "programs" / "alone.py")]
    command = [*alone, sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *words]
    command += ["-m", f"{MARKS} and {stage}"]
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy}/notebooks", "PYTHONDONTWRITEBYTECODE": "1"}
    kwargs = {"cwd": copy, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, text=True, start_new_session=True, **kwargs)
    try:
        output = process.communicate(timeout=limit)[0].strip()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # this also ends all processes in its namespaces
        process.communicate()
        output = f"no end within {limit:.0f} s"
    if mutant:
        (copy / mutant.path).write_bytes(source)
    copies.put(copy)
    passed, seconds = process.returncode in (0, NOTHING_TO_RUN), time.monotonic() - start
    label = f"{'passed' if passed else 'caught'} {mutant}" if mutant else f"no bug: {' '.join(words)}, {stage}"
    reason = MAY_SURVIVE.get(str(mutant))
    print(f"{seconds:4.0f} s  {label}  [{reason or output.splitlines()[-1]}]", flush=True)
    return passed, seconds


def sample_mutants(count: int, seed: int, only: str) -> list[Mutant]:
    """Return a sample of mutants, with equal numbers from all groups of modules if possible."""
    groups = []
    for pattern in TARGETS:
        files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        groups.append([mutant for path in files if only in path for mutant in list_mutants(path)])
        random.Random(f"{seed} {pattern}").shuffle(groups[-1])
    chosen: list[Mutant] = []
    while any(groups) and len(chosen) < count:
        chosen += [group.pop() for group in groups if group][: count - len(chosen)]
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.begin))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=160, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the selection")
    parser.add_argument("--only", default="", help="only files with this in their path")
    parser.add_argument("--list", action="store_true", help="print the mutants without running tests")
    options = parser.parse_args()
    mutants = sample_mutants(options.count, options.seed, options.only)
    if options.list:
        print(*mutants, sep="\n")
        return 0
    workers = len(os.sched_getaffinity(0))
    copies: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        ignore = shutil.ignore_patterns(".git", ".venv*", "runs", "data", "__pycache__", ".*_cache")
        for number in range(workers):
            copies.put(Path(folder, str(number)))
            shutil.copytree(
                ROOT, copies.queue[-1], ignore=lambda path, names: ignore(path, names) if path == str(ROOT) else []
            )
        limits = {(words, stage): 0.0 for words in {select_tests(m.path): 0 for m in mutants} for stage in STAGES}
        done = pool.map(lambda group: run_tests(copies, *group, limit=900), limits)
        for group, (passed, seconds) in zip(limits, done, strict=True):
            if not passed:
                raise SystemExit(f"these tests do not pass without a bug: {' '.join(group[0])}, {group[1]}")
            limits[group] = 3 * seconds + 30

        def caught_by(mutant: Mutant) -> str:
            words = select_tests(mutant.path)
            return next((s for s in STAGES if not run_tests(copies, words, s, limits[words, s], mutant)[0]), "")

        caught = dict(zip(mutants, pool.map(caught_by, mutants), strict=True))
    survived = [mutant for mutant, stage in caught.items() if not stage]
    unexplained = [mutant for mutant in survived if str(mutant) not in MAY_SURVIVE]
    fast = sum(stage == STAGES[0] for stage in caught.values())
    print(f"{len(mutants)} mutants, {len(mutants) - len(survived)} caught ({fast} without machines)", end="")
    print(f", {len(survived)} survived", end="")
    print(f", {len(unexplained)} of them without a reason", *unexplained, sep="\n  ")
    return int(len(unexplained) > 0.15 * (len(mutants) - len(survived) + len(unexplained)))


if __name__ == "__main__":
    sys.exit(main())
