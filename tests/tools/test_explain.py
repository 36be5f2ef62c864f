"""``explain`` recognizes all failures of docs/faults.md and common messages of DGL, torch and NCCL."""

import re
from pathlib import Path

import pytest

from tutorial_lib.errors import InputError, JobError
from tutorial_lib.tools.after_job import explain, find_causes, find_logs, read_signatures

ROOT = Path(__file__).parents[2]
EFFECT = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:3\n"


def table() -> list[tuple[str, str]]:
    """Return fault and message of each row of docs/faults.md, except faults without a failure of the job."""
    text = (ROOT / "docs" / "faults.md").read_text().split("<!-- end of make fault-table -->")[0]
    rows = re.findall(r"^\| (.+?) \| `(.+)` \| [^|]* \|$", text, flags=re.MULTILINE)
    return [(fault, seen) for fault, seen in rows if not seen.startswith(("none:", "nothing:"))]


def names_of(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "job.log").write_text(text)
    return [failure["name"] for failure in find_causes([tmp_path / "job.log"])]


def test_every_fault_in_docs_is_explained(tmp_path):
    assert len(table()) > 40
    for fault, seen in table():
        assert names_of(tmp_path, f"  12.3 s  epoch 1/3\nerror: {seen}\n") != [], fault


MESSAGES = [
    ("Cannot re-initialize CUDA in forked subprocess. To use CUDA with", "CUDA before a fork"),
    ("Cannot find DGL C++ graphbolt library at /x/libgraphbolt_pytorch_2.6.0.so", "no GraphBolt for this torch"),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "shared memory is full"),
    ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device", "one GPU for two ranks"),
    ("RuntimeError: The server socket has failed. errno: 98 - Address already in use", "a port that is taken"),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2", "a failed rendezvous"),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA is out of memory"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "out of memory"),
    ("AttributeError: 'NoneType' object has no attribute 'ntypes'", "a graph name that the servers do not have"),
    ("KeyError: 'LOCAL_RANK'", "a script that was not started by launch or torchrun"),
    ("AssertionError: Distributed module is not initialized. Please call", "a call of DGL before initialize"),
    ("python3: can't open file '/home/me/trian.py': [Errno 2] No such file or directory", "a missing script"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'parts/grpah.json'", "a missing part config"),
    ("error: server 0 on machine-0: ended before the trainers; does the command call", "a server without clients"),
]


@pytest.mark.parametrize(("text", "name"), MESSAGES)
def test_cause_is_named_without_its_effects(text, name, tmp_path):
    stopped = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 6 got signal: 15\n"
    assert names_of(tmp_path, f"{stopped}{text}\n{EFFECT}") == [name]


def test_unknown_failure_is_not_explained(tmp_path):
    """An effect is named if there is no cause."""
    assert names_of(tmp_path, EFFECT * 3) == ["a connection to a process that ended"]
    lines = "\nepoch 3/10  loss 1.2345  valid 0.7890  1.23 s\nClient[0] in group[0] is exiting...\n"
    lines += "UserWarning: errors='ignore' is deprecated\nmy own program has a problem that nobody has seen\n"
    assert names_of(tmp_path, lines) == []
    with pytest.raises(JobError, match="contains no message"):
        explain([tmp_path / "job.log"])


def test_exception_of_failed_rank_is_first(tmp_path, run_here):
    """The report of the launcher is printed before the logs, whose lines can be older and have other causes."""
    logs = tmp_path / "run" / "machine-0"
    logs.mkdir(parents=True)
    (logs / "trainer-0.log").write_text("a\nCUDA error: out of memory\nCUDA out of memory \x1b[2J\n" + EFFECT)
    report = "error: trainer 0 (rank 1) on machine-1: ZeroDivisionError: division by zero (exit code 1)\nlog: x\n"
    (tmp_path / "run" / "failure.txt").write_text(report)
    names = [failure["name"] for failure in find_causes(find_logs(tmp_path / "run"))]
    assert names == ["an exception in a program", "CUDA is out of memory"]
    printed = run_here("explain", "run").stdout
    assert printed.startswith("an exception in a program\n  run/failure.txt:1\n    error: trainer 0 (rank 1)")
    assert "run/machine-0/trainer-0.log:2, and 1 more\n" in printed


def test_logs_of_last_start_are_read(tmp_path, run_here):
    with pytest.raises(InputError, match="has no logs"):
        find_logs(tmp_path)
    for name in ("resume-2", "resume-10", "resume-x"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "failure.txt").write_text("terminated by SIGTERM; everything ...\n")
    assert find_logs(tmp_path) == [tmp_path / "logs" / "resume-10" / "failure.txt"]
    assert "nothing has no logs" in run_here("explain", "nothing").stderr


def test_signatures_have_different_names_and_existing_lessons():
    names = [signature["name"] for signature in read_signatures()]
    assert len(set(names)) == len(names)
    lessons = {int(path.name[:2]) for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert {signature["lesson"] for signature in read_signatures()} <= lessons
