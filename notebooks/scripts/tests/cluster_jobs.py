"""Programs and jobs for the tests of cluster.py, without DGL."""

import os
import signal
import sys
import time
from pathlib import Path

import cluster

# The programs write their IDs, and servers listen on the address and port of their line in ip_config.txt.
PROGRAM = """
import os, pathlib, signal, socket, sys, time

folder, role = pathlib.Path(sys.argv[1]), os.environ["DGL_ROLE"]
number = int(os.environ["DGL_SERVER_ID" if role == "server" else "RANK"])
(folder / f"{role}-{number}").write_text(str(os.getpid()))
lines = [line.split() for line in open(os.environ["DGL_IP_CONFIG"])]
count, plan = int(os.environ["DGL_NUM_SERVER"]), os.environ["PLAN"]
if plan == f"{role} {number} fails":
    while len(list(folder.glob(f"{role}-*"))) < (4 if role == "client" else 2):
        time.sleep(0.02)  # until all of them have started
    sys.exit(3)
if role == "server":
    time.sleep(0.6 * number)  # server 1 loads for a longer time
    address, port = lines[number // count]
    listener = socket.create_server((address, int(port) + number % count))
    while len(list(folder.glob("done-*"))) < 4:
        time.sleep(0.02)
    sys.exit()
for address, port in lines:
    for k in range(count):
        socket.create_connection((address, int(port) + k)).close()  # fails if the server does not listen
if plan == "Ctrl-C" and number == 0:
    os.kill(int(os.environ["LAUNCHER"]), signal.SIGINT)
if plan != "success":
    time.sleep(30)
(folder / f"done-{number}").touch()
"""


PORT = 20_001 + 4 * (os.getpid() % 2_000)  # the kernel gives larger ports to clients


def describe(folder, **options):
    """Return a job of two machines with two servers, two trainers and one sampler each."""
    machines = {"red": "127.0.0.1", "blue": "127.0.0.2"}
    options = {"servers": 2, "trainers": 2, "samplers": 1, "port": PORT, **options}
    (folder / "shm").mkdir(exist_ok=True)
    command = [sys.executable, str(folder / "program.py"), str(folder)]
    paths = {"config": f"{folder}/tiny.json", "ip_config": f"{folder}/ip.txt", "shm": f"{folder}/shm"}
    return cluster.Job(machines=machines, command=command, folder=f"{folder}/logs", **paths, **options)


def ended(pids, seconds=5):
    """Return whether these processes end within some seconds. A zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states = [Path(f"/proc/{pid}/stat") for pid in pids]
        if all(not path.exists() or path.read_text().split(") ")[1][0] == "Z" for path in states):
            return True
        time.sleep(0.02)
    return False


# A process with a child. The process ends, ignores SIGTERM, or writes a file when it receives SIGTERM.
FAMILY = """
import os, pathlib, signal, subprocess, sys, time

how, folder = sys.argv[1], pathlib.Path(sys.argv[2])

def save():
    (folder / "saved").touch()
    (folder / "shm" / "tiny").touch()
    sys.exit()

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
if how == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "saves":
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(0.5) or save())
(folder / f"{how}.part").write_text(f"{os.getpid()} {child.pid}")
os.rename(folder / f"{how}.part", folder / how)
time.sleep(0 if how == "ends" else 30)
"""


def run(folder, plan, seconds=25, monkeypatch=None, servers=1):
    """Run a job with a plan. Return its error, the started processes, and what is left of it."""
    (folder / "program.py").write_text(PROGRAM)
    job = describe(folder, extra={"PLAN": plan, "LAUNCHER": str(os.getpid())}, servers=servers)
    (folder / "shm" / "tiny").touch()
    call = cluster.call

    def call_with_table(job, machine, command):
        """A machine has only the sockets of its address, although all machines are this computer."""
        output = call(job, machine, command)
        if command == "cat /proc/net/tcp":
            address = "".join(f"{int(part):02X}" for part in reversed(job.machines[machine].split(".")))
            header, *lines = output.splitlines()
            return "\n".join([header, *(line for line in lines if line.split()[1].startswith(address))])
        return output

    monkeypatch.setattr(cluster, "call", call_with_table)
    error = None
    try:
        cluster.run_job(job, seconds)
    except NotImplementedError:
        raise
    except (RuntimeError, TimeoutError, KeyboardInterrupt) as raised:
        error = f"{type(raised).__name__}: {raised}"
    names = sorted(path.name for path in folder.glob("[cs]*-[0-9]"))
    pids = [int((folder / name).read_text() or 0) for name in names]
    left = [name for name, pid in zip(names, pids) if not ended([pid], 1)]
    for name, pid in zip(names, pids):
        if name in left:
            os.kill(pid, signal.SIGKILL)
    return error, names, left + os.listdir(folder / "shm")
