"""Tests of ``cluster.py``. All machines are this computer, and small programs play servers and trainers."""

import json
import os
import signal
import sys
import time

import pytest
from cluster_jobs import FAMILY, describe, ended, run

import cluster


def test_write_ip_config(tmp_path):
    """Write an address, a blank and the port of the first server. Each line ends with a newline."""
    cluster.write_ip_config(tmp_path / "ip.txt", ["10.0.0.7", "10.0.0.3"], 30050)
    got, expected = (tmp_path / "ip.txt").read_text(), "10.0.0.7 30050\n10.0.0.3 30050\n"
    assert got == expected


@pytest.mark.parametrize(("trainers", "samplers", "clients"), [(1, 0, "2"), (3, 0, "6"), (3, 2, "18")])
def test_environment(trainers, samplers, clients, tmp_path, monkeypatch):
    """Count the clients of the whole job. Each trainer connects, and so does each of its samplers."""
    monkeypatch.setenv("HOME", "/a home")
    job = describe(tmp_path, trainers=trainers, samplers=samplers, extra={"OMP_NUM_THREADS": "4", "NAME": "value"})
    paths = {"DGL_IP_CONFIG": job.ip_config, "DGL_CONF_PATH": job.config, "HOME": "/a home", "PATH": os.environ["PATH"]}
    fixed = {"DGLBACKEND": "pytorch", "PYTHONUNBUFFERED": "1", "DGL_DIST_MODE": "distributed"}
    counts = {"DGL_NUM_SERVER": "2", "DGL_NUM_SAMPLER": str(samplers), "DGL_NUM_CLIENT": clients}
    got = cluster.environment(job)
    expected = {**paths, **fixed, **counts, "DGL_GRAPH_FORMAT": "csc", "OMP_NUM_THREADS": "4", "NAME": "value"}
    assert got == expected


def added(variables, job):
    """Return the variables that ``environment`` does not have, and whether all of those are included."""
    common = cluster.environment(job)
    return {name: variables[name] for name in variables.keys() - common.keys()}, common.items() <= variables.items()


def test_server_environment(tmp_path):
    """Add DGL_ROLE and DGL_SERVER_ID, the number among the servers of all machines, to ``environment(job)``."""
    job = describe(tmp_path)
    got = [added(cluster.server_environment(job, number), job) for number in (0, 3)]
    expected = [({"DGL_ROLE": "server", "DGL_SERVER_ID": number}, True) for number in ("0", "3")]
    assert got == expected


@pytest.mark.parametrize(("rank", "local"), [(0, "0"), (2, "2"), (3, "0"), (5, "2")])
def test_trainer_environment(rank, local, tmp_path):
    """Two machines have three trainers each. Samplers are not ranks. All trainers meet at the machine of rank 0."""
    job = describe(tmp_path, trainers=3)
    got = added(cluster.trainer_environment(job, rank), job)
    ranks = {"RANK": str(rank), "WORLD_SIZE": "6", "LOCAL_RANK": local}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port - 1)}
    expected = {"DGL_ROLE": "client", **ranks, **master}, True
    assert got == expected


def test_start(tmp_path, monkeypatch):
    """Start ``[*shell(job, machine), shlex.join(words)]``. The words begin with exec, env, -i, -C and the folder.

    Send both outputs to the log, and give the process an empty input and a new session.
    """
    code = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.stdin.read()]), flush=True)"
    code += "; print(os.getpid(), os.getsid(0), file=sys.stderr, flush=True); import time; time.sleep(30)"
    job = describe(tmp_path, remote=f"sh {tmp_path}/remote.sh {{}}")
    job.command = [sys.executable, "-c", code]
    (tmp_path / "remote.sh").write_text(f'echo "$1: $2" >> {tmp_path}/calls\nexec sh -c "$2"\n')
    (folder := tmp_path / "a folder").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OTHER", "is not passed on")
    variables = {"TEXT": "it's $HOME, two  blanks", "LC_CTYPE": "C.UTF-8"}  # Python may set LC_CTYPE
    start = time.monotonic()
    (tmp_path / "input").write_text("typed by the user")
    before, typed = os.dup(0), os.open(tmp_path / "input", os.O_RDONLY)
    os.dup2(typed, 0)
    try:
        process = cluster.start(job, "blue", "trainer-1", variables)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(typed)
    try:
        waited = time.monotonic() - start > 5
        log = tmp_path / "logs" / "blue" / "trainer-1.log"
        while len(log.read_text().splitlines()) < 2 and time.monotonic() < start + 10:
            time.sleep(0.02)
        first, second, *_ = [*log.read_text().splitlines(), "null", ""]
        ids = [int(word) == process.pid for word in second.split()]
        machine = (tmp_path / "calls").read_text().split(":")[0]
    finally:
        process.kill()
        process.wait()
    got = json.loads(first), ids, machine, waited
    expected = [variables, str(folder), ""], [True, True], "blue", False
    assert got == expected


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: {}:7562 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2203 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:7563 01 00000000:00000000 02:000004AA 00000000     0        0 2205 2 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2207 1 0 100 0 0 10 0
"""


def test_listening_ports():
    """Use the port after the colon of column 1, a hexadecimal number, of the rows whose column 3 is 0A."""
    got, expected = cluster.listening_ports(TABLE.format("0100007F")), {0x7562, 22}
    assert got == expected
    got, expected = cluster.listening_ports(TABLE.splitlines()[0] + "\n"), set()
    assert got == expected


class Process:
    """Looks like a ``Popen`` that has ended with an exit code, or still runs."""

    def __init__(self, code=None):
        self.returncode = code

    def poll(self):
        return self.returncode


def rows(*ports):
    return "header\n" + "".join(f" 0: 0100007F:{port:04X} 00000000:0000 0A 0\n" for port in ports)


def wait_for_servers(job, tables, codes=(None, None), seconds=1):
    """Wait while machine "blue" has one of these tables after the other, and machine "red" has all ports."""
    asked, remaining = [], list(tables)

    def call(_job, machine, command):
        assert command == "cat /proc/net/tcp"
        asked.append(machine)
        if machine == "red":
            return rows(job.port, job.port + 1)
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    processes = {f"{name}/server-{k}": Process(code) for k, (name, code) in enumerate(zip(job.machines, codes))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "call", call)
        try:
            cluster.wait_for_servers(job, processes, seconds)
        except NotImplementedError:
            raise
        except (RuntimeError, TimeoutError) as error:
            return type(error).__name__, str(error)
    return "asked", sorted(set(asked)), len(remaining)


def test_wait_for_servers(tmp_path):
    """Wait until all ports of all machines are in the tables. Read a table again until then."""
    job = describe(tmp_path)
    all_ports = rows(job.port, job.port + 1)
    got = wait_for_servers(job, ["", rows(job.port), rows(job.port + 1, 22), all_ports], seconds=8)
    expected = "asked", ["blue", "red"], 1
    assert got == expected


def test_servers_that_do_not_listen(tmp_path):
    """Pass a function to ``wait`` that returns one text for each missing port. ``wait`` raises the errors."""
    job = describe(tmp_path)
    got = wait_for_servers(job, [rows(job.port)], seconds=0.5)
    expected = "TimeoutError", f"after 0.5 s: blue does not listen on port {job.port + 1}"
    assert got == expected
    got = wait_for_servers(job, [""], (None, 3), seconds=8)
    expected = "RuntimeError", "blue/server-1 failed with exit code 3"
    assert got == expected


def test_stop(tmp_path):
    """Send SIGTERM to the group of every process, and SIGKILL to the groups that still run after 3 s. Then call rm."""
    (tmp_path / "program.py").write_text(FAMILY)
    job, processes = describe(tmp_path), {}
    for how in ("ends", "saves", "ignores"):
        command = [sys.executable, str(tmp_path / "program.py"), how, str(tmp_path)]
        processes[f"red/{how}"] = cluster.Popen(command, start_new_session=True)
    while not all((tmp_path / how).exists() for how in ("ends", "saves", "ignores")):
        time.sleep(0.02)
    processes["red/ends"].wait()
    pids = [pid for how in ("ends", "saves", "ignores") for pid in (tmp_path / how).read_text().split()]
    start = time.monotonic()
    try:
        cluster.stop(job, processes)
        seconds = time.monotonic() - start
        saved, shared = (tmp_path / "saved").exists(), os.listdir(tmp_path / "shm")
        got = ended(pids, 1), saved, shared, 2.5 < seconds < 30
    finally:
        for pid in map(int, pids):
            if not ended([pid], 0.05):
                os.kill(pid, signal.SIGKILL)
    expected = True, True, [], True
    assert got == expected


def test_stop_returns_when_all_have_ended(tmp_path):
    """Do not wait for 3 s after each signal. Check the groups repeatedly with the signal number 0."""
    process = cluster.Popen([sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True)
    start = time.monotonic()
    cluster.stop(describe(tmp_path), {"red/server-0": process})
    got, expected = (process.poll(), time.monotonic() - start < 5), (-signal.SIGTERM, True)
    assert got == expected


def test_stop_removes_shared_memory(tmp_path):
    """Call ``rm -f`` on every machine, after its processes have ended. Other files of this folder remain."""
    job, calls = describe(tmp_path, remote=f"sh {tmp_path}/remote.sh {{}}"), tmp_path / "calls"
    (tmp_path / "remote.sh").write_text(f'echo "$1" >> {calls}\nexec sh -c "$2"\n')
    for name in ("node~_N~feat-kvdata-", "table-kvdata-", "tiny", "tiny_edge__ID", "my-tiny", "other"):
        (tmp_path / "shm" / name).touch()
    cluster.stop(job, {})
    got = sorted(os.listdir(tmp_path / "shm")), sorted(set(calls.read_text().split()))
    expected = ["my-tiny", "other"], ["blue", "red"]
    assert got == expected


ALL = ["client-0", "client-1", "client-2", "client-3", "server-0", "server-1"]


def test_run_job(tmp_path, monkeypatch):
    """Two servers on each machine. Start the trainers when all of them listen, and wait until they have ended, too."""
    got = run(tmp_path, "success", monkeypatch=monkeypatch, servers=2)
    expected = None, [*ALL, "server-2", "server-3"], []
    assert got == expected
    got = sorted(str(path.relative_to(tmp_path / "logs")) for path in (tmp_path / "logs").glob("*/*"))
    expected = ["blue/server-2.log", "blue/server-3.log", "blue/trainer-2.log", "blue/trainer-3.log"]
    expected += ["red/server-0.log", "red/server-1.log", "red/trainer-0.log", "red/trainer-1.log"]
    assert got == expected


def test_failed_trainer(tmp_path, monkeypatch):
    """One trainer fails, and the others would run for 30 s. ``wait`` raises the error, and ``finally`` calls stop."""
    got = run(tmp_path, "client 2 fails", monkeypatch=monkeypatch)
    expected = "RuntimeError: blue/trainer-2 failed with exit code 3", ALL, []
    assert got == expected


def test_failed_server(tmp_path, monkeypatch):
    """A server fails before it listens, so no trainer starts."""
    got = run(tmp_path, "server 1 fails", monkeypatch=monkeypatch)
    expected = "RuntimeError: blue/server-1 failed with exit code 3", ["server-0", "server-1"], []
    assert got == expected


def test_time_limit(tmp_path, monkeypatch):
    """The trainers sleep. List the names of all processes that still run, in the order of their start."""
    names = ["red/server-0", "blue/server-1", "red/trainer-0", "red/trainer-1", "blue/trainer-2", "blue/trainer-3"]
    text = ", ".join(f"{name} still runs" for name in names)
    got = run(tmp_path, "sleep", 10, monkeypatch)
    expected = f"TimeoutError: after 10 s: {text}", ALL, []
    assert got == expected


def test_interrupted_job(tmp_path, monkeypatch):
    """Trainer 0 sends the signal of Ctrl-C. Do not catch the KeyboardInterrupt, and stop all processes."""
    error, _, left = run(tmp_path, "Ctrl-C", monkeypatch=monkeypatch)
    got, expected = (error, left), ("KeyboardInterrupt: ", [])
    assert got == expected
