"""Whose files lie in /dev/shm: told apart by markers that the kernel unlocks, tried with processes that are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import wait_until

from tutorial_lib.cluster.shm import (
    MARKER,
    SHM,
    clean_leftovers,
    dgl_segments,
    graph_name_in,
    job_marker,
    leftovers,
    processes_using,
    remove_segments,
)

pytestmark = pytest.mark.usefixtures("nothing_left")
FEATURE = "node~_N~test-shm-feat-kvdata-"
JOB = """
import sys, time
from pathlib import Path
from tutorial_lib.cluster.shm import SHM, job_marker
with job_marker("test-shm-graph", set(sys.argv[1:])):
    for name in ["node~_N~test-shm-feat-kvdata-", "test-shm-graph_node_node_map", "test-shm-graph"]:
        (SHM / name).write_bytes(b"x" * 4096)
    print("ready", flush=True)
    time.sleep(100)
"""
OWN = ("node~_N~test-shm-feat-kvdata-", "test-shm-graph", "test-shm-graph_node_node_map")


@pytest.fixture
def start_job() -> Iterator[Callable[..., subprocess.Popen]]:
    """``start_job(*before)``: a process with a marker and three files; killed at the end, its files removed."""
    processes = []

    def start(*before: str) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", JOB, *before], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
    clean_leftovers()
    for name in OWN:
        (SHM / name).unlink(missing_ok=True)


@pytest.fixture
def foreign() -> Iterator[Path]:
    path = SHM / FEATURE
    path.write_bytes(b"x" * 4096)
    yield path
    path.unlink(missing_ok=True)


def test_a_running_job_is_live_and_its_files_are_kept(start_job):
    job = start_job()
    found = leftovers()
    assert [(j.pid, j.files) for j in found.live] == [(job.pid, OWN)]
    assert (found.dead, found.foreign) == ([], [])
    assert clean_leftovers() == []
    assert all((SHM / name).exists() for name in OWN)


def test_a_killed_job_is_dead_and_only_its_files_are_removed(start_job):
    others = SHM / "test-shm-other"
    others.write_bytes(b"x")
    try:
        job = start_job()
        job.kill()
        job.wait()
        assert [(j.pid, j.files) for j in leftovers().dead] == [(job.pid, OWN)]
        assert clean_leftovers() == list(OWN)
        assert others.exists()
        assert not list(SHM.glob(f"{MARKER}*"))
        assert clean_leftovers() == []
    finally:
        others.unlink()


def test_a_stopped_job_is_live(start_job):
    job = start_job()
    job.send_signal(signal.SIGSTOP)
    assert [j.pid for j in leftovers().live] == [job.pid]


def test_a_process_number_in_use_again_does_not_keep_a_dead_job_alive(start_job):
    job = start_job()
    job.kill()
    job.wait()
    (marker,) = SHM.glob(f"{MARKER}*")
    marker.write_text(marker.read_text().replace(str(job.pid), str(os.getpid())))
    assert [j.pid for j in leftovers().dead] == [os.getpid()]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare program")
def test_a_job_in_another_pid_namespace_is_live(emulation, start_job):
    """A container may share /dev/shm and count its processes anew: a process number says nothing here."""
    unshare = ["unshare", "--user", "--pid", "--fork", "--kill-child", sys.executable, "-c", JOB]
    inside = subprocess.Popen(unshare, stdout=subprocess.PIPE, text=True)
    try:
        assert inside.stdout.readline() == "ready\n"
        assert [j.pid for j in leftovers().live] == [1]
        assert clean_leftovers() == []
    finally:
        inside.kill()
        inside.communicate()
    wait_until(lambda: not leftovers().live, "the kernel, which ends a namespace in its own time", 5)
    assert clean_leftovers() == list(OWN)


def test_files_without_a_marker_are_foreign(foreign):
    found = leftovers()
    assert (found.foreign, found.dead, found.live) == ([FEATURE], [], [])
    assert clean_leftovers() == []
    assert foreign.exists()


def test_files_from_before_a_job_are_not_its_own(foreign, start_job):
    job = start_job(FEATURE)
    job.kill()
    job.wait()
    assert leftovers().foreign == [FEATURE]
    assert clean_leftovers() == list(OWN[1:])
    assert foreign.exists()


def test_a_file_in_use_is_never_a_dead_jobs(start_job):
    """DGL's own launch tool leaves no marker, and its job may write files of the same names as a dead one of ours."""
    job = start_job()
    job.kill()
    job.wait()
    code = (
        "import mmap, sys, time\nf = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
        "print('ready', flush=True); time.sleep(100)"
    )
    user = subprocess.Popen([sys.executable, "-c", code, str(SHM / FEATURE)], stdout=subprocess.PIPE, text=True)
    try:
        assert user.stdout.readline() == "ready\n"
        assert processes_using([FEATURE, OWN[1]]) == {FEATURE: user.pid}
        assert leftovers().users == {FEATURE: user.pid}
        assert clean_leftovers() == list(OWN[1:])
        assert [j.in_use for j in leftovers().dead] == [(FEATURE,)]
        assert leftovers().foreign == [FEATURE]
    finally:
        user.kill()
        user.communicate()
    assert clean_leftovers() == [FEATURE]
    assert leftovers().dead == []


def test_a_marker_goes_with_its_block():
    with job_marker("test-shm-graph", set()) as marker:
        assert [(j.marker, j.pid) for j in leftovers().live] == [(marker.name, os.getpid())]
    assert not marker.exists()
    assert leftovers().live == []


def test_a_marker_that_nobody_can_read_is_left_alone():
    damaged = SHM / f"{MARKER}1-x.json"
    damaged.write_text("{")
    try:
        assert (leftovers().dead, leftovers().live) == ([], [])
        assert clean_leftovers() == []
    finally:
        damaged.unlink()


HOSTILE = {
    "fifo": lambda path: os.mkfifo(path, 0o666),
    "link": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "endless": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 33),
    "deep": lambda path: path.write_text("[" * 100_000),
    "no pid": lambda path: path.write_text('{"pid": Infinity, "graph_name": "g", "before": []}'),
    "odd names": lambda path: path.write_text('{"pid": 1, "graph_name": 3, "before": [[1]]}'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_another_user_names_like_a_marker_stops_nobody(kind):
    """A FIFO has no end and no writer: who opens it for reading waits for ever, unless told not to."""
    path = SHM / f"{MARKER}1-hostile.json"
    HOSTILE[kind](path)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    try:
        code = "from tutorial_lib.cluster.shm import *; print(clean_leftovers(), leftovers().live)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stdout) == (0, "[] []\n"), done.stderr
    finally:
        path.rmdir() if kind == "folder" else path.unlink()


def test_names_of_others_are_not_taken_for_dgls(tmp_path):
    """A graph may be named torch: torch and Python's multiprocessing name their shared memory torch_* and psm_*."""
    (tmp_path / "p.json").write_text('{"graph_name": "torch"}')
    others = ["torch_123_456_7", "psm_1_edge_2", "torch_node_x", "torchtorch_0_csc_indptr.mine", "my-kvdata-notes"]
    ours = ["torch", "torch_node_meta", "torchtorch_0_csc_indptr", "edge~_E~weight-kvdata-"]
    ours.append("dgl.graphbolt.torch_metadata.lock")
    try:
        for name in [*others, *ours]:
            (SHM / name).write_bytes(b"x")
        assert dgl_segments() == sorted(ours[1:])  # the name of a graph alone says nothing
        remove_segments(set(), str(tmp_path / "p.json"))
        assert not any((SHM / name).exists() for name in ours)
        assert all((SHM / name).exists() for name in others)
    finally:
        for name in [*others, *ours]:
            (SHM / name).unlink(missing_ok=True)


def test_every_name_that_dgl_writes_is_known():
    """DGL's own functions, as a server calls them, in a process of their own: what they add is ours to remove."""
    done = subprocess.run([sys.executable, "-c", DGL_NAMES], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["added"]) > 12
    assert told["left"] == []


DGL_NAMES = """
import json, os
import dgl, numpy, torch
from dgl.distributed.dist_graph import _copy_graph_to_shared_mem
from dgl.distributed.graph_partition_book import RangePartitionBook
from tutorial_lib.cluster.shm import dgl_segments, remove_segments
before = set(os.listdir("/dev/shm"))
graph = dgl.rand_graph(30, 100)
graph.ndata.update({"inner_node": torch.ones(30, dtype=torch.int32), dgl.NID: torch.arange(30)})
graph.edata.update({"inner_edge": torch.ones(100, dtype=torch.int32), dgl.EID: torch.arange(100)})
graph.edata[dgl.ETYPE] = torch.zeros(100, dtype=torch.int32)
kept = [_copy_graph_to_shared_mem(graph, "test-shm-names", ["csc", "csr", "coo"], False)]
edge = ("_N", "_E", "_N")
book = RangePartitionBook(0, 1, {"_N": numpy.array([[0, 30]])}, {edge: numpy.array([[0, 100]])}, {"_N": 0}, {edge: 0})
book.shared_memory("test-shm-names")
try:
    import dgl.graphbolt as gb
    kept.append(gb.from_dglgraph(graph).copy_to_shared_memory("test-shm-names"))
except (ImportError, AttributeError):
    pass  # a stack without GraphBolt
added = set(os.listdir("/dev/shm")) - before
with open("/dev/shm/test-shm-names.json", "w") as file:
    json.dump({"graph_name": "test-shm-names"}, file)
unknown = added - set(dgl_segments()) - {"test-shm-names"}
remove_segments(before | {"test-shm-names.json"}, "/dev/shm/test-shm-names.json")
os.unlink("/dev/shm/test-shm-names.json")
left = set(os.listdir("/dev/shm")) - before
print(json.dumps({"added": sorted(added), "left": sorted(left | unknown)}), flush=True)
os._exit(0)
"""


def test_remove_segments_takes_only_what_is_new(foreign, tmp_path):
    config = tmp_path / "p.json"
    config.write_text('{"graph_name": "test-shm-graph"}')
    new = SHM / "test-shm-graph_edge_edge_map"
    new.write_bytes(b"x")
    remove_segments({FEATURE}, str(config))
    assert not new.exists()
    assert dgl_segments() == [FEATURE]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"graph_name": 3}', '{"graph_name": ""}'])
def test_graph_name_of_a_bad_description(text, tmp_path):
    (tmp_path / "p.json").write_text(text)
    assert graph_name_in(tmp_path / "p.json") is None
    assert graph_name_in(tmp_path / "missing.json") is None
