"""Start a DGL job on the machines of a cluster (lesson 09): python cluster.py JOB.json SECONDS."""

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from cluster_job import Job, call, shell, signal_group, wait


def write_ip_config(path, addresses, port):
    """Write one line "ADDRESS PORT" for each machine."""
    Path(path).write_text("".join(f"{address} {port}\n" for address in addresses))


def environment(job):
    """Return the variables that all processes have, a dict of strings.

    - PATH and HOME of this process. DGL writes a file to HOME if DGLBACKEND is not set
    - DGLBACKEND=pytorch, OMP_NUM_THREADS=1, PYTHONUNBUFFERED=1
    - DGL_DIST_MODE=distributed
    - DGL_IP_CONFIG, DGL_CONF_PATH: the two files of the job
    - DGL_GRAPH_FORMAT=csc, the only format that sampling needs
    - DGL_NUM_SERVER: servers on each machine. DGL_NUM_SAMPLER: samplers of each trainer
    - DGL_NUM_CLIENT: processes that connect to each server, which are all trainers and their samplers
    - the variables in ``job.extra``, which replace those above
    """
    clients = len(job.machines) * job.trainers * (1 + job.samplers)
    paths = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    fixed = {"DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "DGL_DIST_MODE": "distributed"}
    files = {"DGL_IP_CONFIG": job.ip_config, "DGL_CONF_PATH": job.config, "DGL_GRAPH_FORMAT": "csc"}
    counts = {"DGL_NUM_SERVER": str(job.servers), "DGL_NUM_SAMPLER": str(job.samplers), "DGL_NUM_CLIENT": str(clients)}
    return {**paths, **fixed, **files, **counts, **job.extra}


def server_environment(job, number):
    """Return all variables of a server: those of ``environment``, DGL_ROLE and DGL_SERVER_ID (number in the job)."""
    return {**environment(job), "DGL_ROLE": "server", "DGL_SERVER_ID": str(number)}


def trainer_environment(job, rank):
    """Return all variables of a trainer: those of ``environment`` and the following ones.

    - DGL_ROLE=client
    - RANK, WORLD_SIZE: number of this trainer in the job, and number of all trainers
    - LOCAL_RANK: number of this trainer on its machine
    - MASTER_ADDR, MASTER_PORT: address of the machine of rank 0, and a port that no server uses (``job.port - 1``)
    """
    size, first = len(job.machines) * job.trainers, next(iter(job.machines.values()))
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % job.trainers)}
    master = {"MASTER_ADDR": first, "MASTER_PORT": str(job.port - 1)}
    return {**environment(job), "DGL_ROLE": "client", **ranks, **master}


def start(job, machine, name, variables):
    """Start a process of the job and return its ``Popen``. Do not wait for it.

    Add one word to ``shell(job, machine)``: "exec env -i -C FOLDER VARIABLE=VALUE ... COMMAND". ``exec`` replaces the
    shell, ``-i`` removes all other variables, and FOLDER is ``os.getcwd()``. ``shlex.join`` quotes all words.

    The input is DEVNULL. Output and errors replace the file ``job.folder/machine/name.log``, whose folder may not exist
    yet. Use ``start_new_session=True``. The process and its children then form a process group with the ID
    ``process.pid``, and only the launcher receives Ctrl-C.

    Args:
        name: such as "server-0".
        variables: dict of strings, the complete environment.
    """
    words = ["exec", "env", "-i", "-C", os.getcwd()]
    words += [f"{key}={value}" for key, value in variables.items()]
    path = Path(job.folder, machine, f"{name}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as log:
        command = [*shell(job, machine), shlex.join([*words, *job.command])]
        return Popen(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, start_new_session=True)


def listening_ports(table):
    """Return the set of ports on which some process listens.

    Args:
        table: text of /proc/net/tcp. Its first line is a header. In the other lines, column 1 (counted from 0) is the
            local address and port in hexadecimal digits, such as 0100007F:7562, and column 3 is 0A for a listening
            socket.
    """
    rows = [line.split() for line in table.splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"}


def wait_for_servers(job, processes, seconds):
    """Wait with ``wait`` until all servers of all machines listen.

    Read the table of a machine with ``call(job, machine, "cat /proc/net/tcp")``. Do not connect to the ports, because
    DGL counts each connection as a client. An entry of the pending list is "machine-1 does not listen on port 30050".
    """

    def pending():
        missing = []
        for machine in job.machines:
            ports = listening_ports(call(job, machine, "cat /proc/net/tcp"))
            for port in range(job.port, job.port + job.servers):
                if port not in ports:
                    missing.append(f"{machine} does not listen on port {port}")
        return missing

    wait(pending, processes, seconds)


def stop(job, processes):
    """End all processes of a job with their children, and remove its shared memory on all machines.

    Send SIGTERM with ``signal_group`` to each process, also to one that has ended, because its children can still run.
    Wait until all groups have ended (``signal_group(process, 0)``), for at most 3 s. Then do the same with SIGKILL.
    Afterwards, use ``call`` and "rm -f" to remove the files in ``job.shm`` whose names contain "-kvdata-" or begin with
    the name of the graph, which is the file name in ``job.config`` without ".json".
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes.values():
            signal_group(process, number)
        end = time.monotonic() + 3
        while time.monotonic() < end and any(signal_group(process, 0) for process in processes.values()):
            time.sleep(0.05)
    for machine in job.machines:
        call(job, machine, f"rm -f {job.shm}/*-kvdata-* {job.shm}/{Path(job.config).stem}*")


def run_job(job, seconds):
    """Run a job to its end. Call ``stop`` in every case, also after an error or Ctrl-C.

    Write ``job.ip_config`` on this computer. (Machines without a shared disk need a copy.) Start the servers of all
    machines, and wait at most ``job.load_seconds`` until they listen. Start the trainers, and wait at most ``seconds``
    until all processes have ended. The names of the processes, such as "machine-1/server-1", contain the number in the
    job. An entry of the second pending list is "machine-1/server-1 still runs", in the order of the starts.
    """
    write_ip_config(job.ip_config, job.machines.values(), job.port)
    processes = {}

    def start_all(role, count, variables_of):
        for number in range(len(job.machines) * count):
            machine = list(job.machines)[number // count]
            process = start(job, machine, f"{role}-{number}", variables_of(job, number))
            processes[f"{machine}/{role}-{number}"] = process

    try:
        start_all("server", job.servers, server_environment)
        wait_for_servers(job, processes, job.load_seconds)
        start_all("trainer", job.trainers, trainer_environment)
        wait(lambda: [f"{name} still runs" for name, p in processes.items() if p.poll() is None], processes, seconds)
    finally:
        stop(job, processes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # "finally" runs
    try:
        run_job(Job(**json.loads(Path(sys.argv[1]).read_text())), float(sys.argv[2]))
    except (RuntimeError, TimeoutError) as error:
        sys.exit(f"error: {error}")
