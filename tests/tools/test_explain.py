"""``explain``: every failure of our own table, and those that users of DGL, torch and NCCL paste; else "unknown"."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import tutorial
from runtime_support import FinishedRun

from tutorial_lib.errors import InputError
from tutorial_lib.tools.explain import explain, logs_of, signatures

ROOT = Path(__file__).parents[2]


def table() -> list[tuple[str, str]]:
    """(fault, what the user saw) of docs/faults.md, without those that are no failure of the job."""
    text = (ROOT / "docs" / "faults.md").read_text().split("<!-- end of make fault-table -->")[0]
    rows = re.findall(r"^\| (.+?) \| `(.+)` \| [^|]* \|$", text, flags=re.MULTILINE)
    return [(fault, seen) for fault, seen in rows if not seen.startswith(("none:", "nothing:"))]


def names_of(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "job.log").write_text(text)
    return [finding.signature.name for finding in explain([tmp_path / "job.log"])]


def test_the_table_is_there():
    assert len(table()) > 40


@pytest.mark.parametrize(("fault", "seen"), table(), ids=[f"{k}-{row[0][:40]}" for k, row in enumerate(table())])
def test_every_fault_of_the_table_is_explained(fault, seen, tmp_path):
    assert names_of(tmp_path, f"  12.3 s  epoch 1/3\nerror: {seen}\n") != [], fault


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("SIGKILL to a trainer", "a process that was killed"),
        ("out of memory", "killed for want of memory"),
        ("/dev/shm fills up meanwhile", "shared memory is full"),
        ("a port is taken", "a port that is taken"),
        ("a truncated partition file", "a part that is damaged or missing"),
        ("one rank skips a collective, --stall-timeout 4", "a collective that nobody ended"),
        ("the wire cut for good", "a machine that does not answer"),
        ("another dgl version on one machine", "another DGL or torch on a machine"),
        ("a trainer: raise", "an exception in a program"),
        ("over ssh: no key", "an ssh login that is refused"),
        ("a loss that is no number", "a loss that is no number"),
    ],
)
def test_by_its_name(fault, name, tmp_path):
    assert names_of(tmp_path, dict(table())[fault] + "\n") == [name]


# In our own words, after what people have reported; the messages in them are those of the libraries.
PUBLIC = [
    (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with",
        "CUDA before a fork",
    ),
    ("FileNotFoundError: Cannot find DGL C++ graphbolt library at /x/libgraphbolt_pytorch_2.6.0.so", "no GraphBolt"),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "shared memory is full"),
    ("RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo] no route", "the wrong network card"),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration",
        "gradients that are never made",
    ),
    ("[E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout", "a collective that nobody ended"),
    ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device", "one GPU for two ranks"),
    (
        "RuntimeError: The server socket has failed. errno: 98 - Address already in use",
        "a port that is taken",
    ),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2", "ranks that never met"),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running", "ranks that do different"),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA is out of memory"),
    ("  exitcode  : -9 (pid: 4711)", "a process that was killed"),
    ("An attempt has been made to start a new process before the current process has", "a script without a guard"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "killed for want of memory"),
    ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***", "Slurm took the nodes"),
    ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3", "a peer has gone"),
]


@pytest.mark.parametrize(("text", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_what_people_report(text, name, tmp_path):
    (found,) = names_of(tmp_path, f"INFO starting\n{text}\n")
    assert found.startswith(name)


FIRST_ERRORS = [
    ("AttributeError: 'NoneType' object has no attribute 'ntypes'", "a graph name that the servers do not have"),
    ("KeyError: 'feat'", "a key that does not exist"),
    ("KeyError: 'LOCAL_RANK'", "a script that was not started by launch or torchrun"),
    ("AssertionError: Distributed module is not initialized. Please call", "a call of DGL before initialize"),
    ("error: server 0 on machine-1: killed by signal 11 (SIGSEGV)", "a DGL server that crashed"),  # what comes of it
    ("ValueError: Default process group has not been initialized, please make", "ranks without a process group"),
    ("ModuleNotFoundError: No module named 'torch_sparse'", "a module that is not installed"),
    ("python3: can't open file '/home/me/trian.py': [Errno 2] No such file or directory", "a script that is not there"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'parts/grpah.json'", "a part config that is not there"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'ip_config.txt'", "an address file that is not there"),
    ("train.py: error: unrecognized arguments: --epohcs 3", "wrong arguments of the script"),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x100 and 99x16)", "a layer of the wrong width"),
    ("freeze_support()", "a script without a guard"),
    ("error: server 0 on machine-0: ended before the trainers; did the command reach", "a server without its clients"),
]


@pytest.mark.parametrize(("text", "name"), FIRST_ERRORS, ids=[name for _, name in FIRST_ERRORS])
def test_likely_first_errors_in_a_script(text, name, tmp_path):
    """The exception is named first, and what it does to torchrun and to the other ranks is not named."""
    others = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 6 got signal: 15\n"
    assert names_of(tmp_path, f"{others}{text}\nRuntimeError: Connection closed by peer\n") == [name]


def test_advice_for_a_run_of_launch_and_of_train(tmp_path, run_here):
    """A run of `launch` has its logs directly in its folder, and nothing to continue from."""
    text = "error: trainer 0 (rank 0) on machine-0: the job has not moved for 120 s: in recv\n"
    text += "interrupted; everything that was started has been stopped\n"
    for name, logs in (("launched", ""), ("trained", "logs"), ("begun", "logs")):
        folder = tmp_path / name / logs
        folder.mkdir(parents=True)
        (folder / "failure.txt").write_text(text)
        (folder / "stacks.txt").write_text("")
    (tmp_path / "trained" / "checkpoint").mkdir()
    (tmp_path / "trained" / "checkpoint" / "manifest.json").write_text("{}")
    said = {name: run_here("explain", name).stdout for name in ("launched", "trained", "begun")}
    assert "look:  launched/stacks.txt, or py-spy dump" in said["launched"]
    assert "look:  trained/logs/stacks.txt, or py-spy dump" in said["trained"]
    assert "To go on: python -m tutorial_lib train --resume --out trained\n" in said["trained"]
    for name in ("launched", "begun"):
        assert "--resume" not in said[name]
        assert "To go on: start the job again" in said[name]


def test_an_effect_is_told_only_where_no_cause_is(tmp_path):
    effect = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:3\n"
    assert names_of(tmp_path, effect * 3) == ["a peer has gone"]
    assert names_of(tmp_path, effect + "error: trainer 0 (rank 1) on machine-1: killed by signal 9 (SIGKILL)\n") == [
        "a process that was killed"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "epoch 3/10  loss 1.2345  valid 0.7890  1.23 s",
        "Client[0] in group[0] is exiting...",
        "UserWarning: errors='ignore' is deprecated",
        "my own program has a problem that nobody has seen",
    ],
)
def test_nothing_is_guessed(text, tmp_path):
    assert names_of(tmp_path, text + "\n") == []


@pytest.mark.cluster
def test_a_run_that_ended_well_has_nothing_to_explain(finished_run: FinishedRun):
    done = tutorial("explain", str(finished_run.out), code=1)
    assert done.stdout == ""
    assert "unknown: nothing in" in done.stderr


def test_the_command(tmp_path):
    logs = tmp_path / "run" / "logs" / "machine-1"
    logs.mkdir(parents=True)
    (logs / "trainer-0.log").write_text("a\nb\nRuntimeError: CUDA error: out of memory\nCUDA out of memory\n")
    done = tutorial("explain", str(tmp_path / "run"))
    assert done.stdout.startswith("CUDA is out of memory\n")
    assert f"{logs / 'trainer-0.log'}:3, and 1 more\n    RuntimeError: CUDA error: out of memory" in done.stdout
    assert "lesson 06 is about it" in done.stdout
    (found,) = json.loads(tutorial("explain", "--json", str(logs / "trainer-0.log")).stdout)
    assert (found["line"], found["times"], found["lesson"]) == (3, 2, 6)
    assert "does not exist" in tutorial("explain", str(tmp_path / "nothing"), code=2).stderr


def test_the_report_of_a_run_names_the_cause_where_its_logs_have_consequences_only(tmp_path):
    logs = tmp_path / "logs" / "machine-0"
    logs.mkdir(parents=True)
    (logs / "trainer-0.log").write_text("RuntimeError: Connection closed by peer [10.77.0.2]:4711\n")
    report = "error: trainer 0 (rank 1) on machine-1: killed by signal 9 (SIGKILL)\nwhat to do: see dmesg\n"
    (tmp_path / "logs" / "failure.txt").write_text(report)
    assert [finding.signature.name for finding in explain(logs_of(tmp_path))] == ["a process that was killed"]


def test_a_folder_without_logs(tmp_path):
    with pytest.raises(InputError, match="has no logs"):
        logs_of(tmp_path)


def test_signatures_are_whole():
    """Each names a lesson that is there, and none has the name of another."""
    names = [signature.name for signature in signatures()]
    assert len(set(names)) == len(names)
    lessons = {int(path.name[:2]) for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert {signature.lesson for signature in signatures()} <= lessons
