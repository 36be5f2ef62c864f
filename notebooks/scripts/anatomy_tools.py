"""Type commands on the emulated machines of lessons 09 and 11, and show processes, stacks and connections."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

CLUSTER = "anatomy"  # the name of the machines
COMMON = "PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=1 DGLBACKEND=pytorch DGL_DIST_MODE=distributed"
SOCKET = re.compile(r"\[(\S+)\] (LISTEN|ESTAB) +\d+ +\d+ +(\S+) +(\S+) +users:.*?pid=(\d+)")


def run_on(machine, *command):
    """Run a command on a machine, or on all of them, and return the lines of its output and errors."""
    program = ["support.lessons.on_all", CLUSTER]
    if machine != "all":
        program = ["tutorial_lib", "on", "--name", CLUSTER, machine]
    environment = {**os.environ, "CLICOLOR_FORCE": "0"}  # otherwise, py-spy prints color codes
    words = [sys.executable, "-m", *program, *command]
    done = subprocess.run(words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, env=environment)
    return done.stdout.splitlines()


def type_command(job, folder, machine, name, variables):
    """Print a command, start it on a machine with its output in FOLDER/NAME.log, and add ``job[log]``, a ``Popen``."""
    command = f'env -i HOME="$HOME" PATH="$PATH" {COMMON} {variables} python3 scripts/anatomy_job.py {folder}'
    print(f"machine-{machine}$ {command}")
    log = Path(folder, f"{name}.log")
    with log.open("w") as file:
        words = f"exec python -m tutorial_lib on --name {CLUSTER} machine-{machine} {command}"
        job[log] = Popen(words, shell=True, stdin=DEVNULL, stdout=file, stderr=STDOUT)


def kill_all(job):
    """Kill the processes, and the commands on the machines with them. Print the exit codes."""
    for process in job.values():
        process.kill()
    print("exit codes:", [process.wait(60) for process in job.values()])
    job.clear()


def wait_until(condition, processes, seconds=150):
    """Return whether the condition holds within this time. ``processes`` is a dict of log -> ``Popen``.

    Raises:
        RuntimeError: a process has failed. The message contains the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        for log, process in processes.items():
            if process.poll():
                end = log.read_text()[-2000:]
                raise RuntimeError(f"{log} ended with exit code {process.returncode}. The end of its log:\n{end}")
        time.sleep(0.2)
    return condition()


def cut(lines):
    """Return the lines without the folders of this computer."""
    return [re.sub(r"(?<!\w)/(?:[\w.+-]+/)+", ".../", line) for line in lines]


def stack_of(machine, pid, log, *options):
    """Return a process's Python stack from py-spy. If py-spy is refused, the process prints it without variables."""
    lines = run_on(machine, "py-spy", "dump", *options, "--pid", pid)
    if any(line.startswith("Thread") for line in lines):
        return cut(lines)[2:]
    print("py-spy was refused, so the process printed its stack itself:", cut(lines)[0])
    before = len(log.read_text())
    run_on(machine, "sh", "-c", f"kill -USR1 {pid}")
    wait_until(lambda: "<module>" in log.read_text()[before:], {}, 10)
    return cut(log.read_text()[before:].splitlines())


def roles_of_processes():
    """Return a dict of (machine, pid) -> "server 0" or "trainer 1", from the environment that ``ps e`` prints."""
    found = {}
    for machine, pid, _command, *words in map(str.split, run_on("all", "ps", "axeww", "-o", "pid,args")):
        of = dict(word.split("=", 1) for word in words if "=" in word)
        if "DGL_ROLE" in of and "-c" not in words:  # child processes of a trainer inherit its environment
            role = f"server {of['DGL_SERVER_ID']}" if of["DGL_ROLE"] == "server" else f"trainer {of['RANK']}"
            found[machine.strip("[]"), int(pid)] = role
    return found


def sockets_of(roles):
    """Return (role, state, own address, address of the peer) of each TCP socket of these processes."""
    lines = [re.sub(r"::ffff:|\[(?=[:\d])|(?<=\d)\](?=:)", "", line) for line in run_on("all", "ss", "-tnap")]
    found = [match.groups() for match in map(SOCKET.match, lines) if match]
    return [(roles[machine, int(pid)], *socket) for machine, *socket, pid in found if (machine, int(pid)) in roles]


def connections_of(roles):
    """Return the pair (caller, called process) of each connection between these processes.

    The called process listens on the port of its own address.
    """
    sockets = sockets_of(roles)
    listening = {(role, own.rsplit(":", 1)[1]) for role, state, own, _ in sockets if state == "LISTEN"}
    owner = {own: role for role, state, own, _ in sockets if state == "ESTAB"}
    called = [(peer, role) for role, _, own, peer in sockets if (role, own.rsplit(":", 1)[1]) in listening]
    return sorted((owner[peer], role) for peer, role in called if peer in owner)


def users_of(pattern, roles):
    """Return the roles of the processes on machine 0 that map a file with this name. Samplers have no role."""
    files = run_on("machine-0", "sh", "-c", f"grep -ls {pattern} /proc/[0-9]*/maps")
    return sorted(roles.get(("machine-0", int(file.split("/")[2])), "a sampler") for file in files)
