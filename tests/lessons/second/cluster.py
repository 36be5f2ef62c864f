"""A second solution of the holes in ``cluster.py``."""

import itertools
import os
import shlex
import signal
import time
from subprocess import DEVNULL, STDOUT, Popen

from cluster_job import call, shell, signal_group, wait


def write_ip_config(path, addresses, port):
    with open(path, "w") as file:
        for address in addresses:
            print(address, port, file=file)


def environment(job):
    clients_of_machine = job.trainers + job.trainers * job.samplers
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    variables.update(DGLBACKEND="pytorch", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    variables.update(DGL_DIST_MODE="distributed", DGL_GRAPH_FORMAT="csc")
    variables.update(DGL_IP_CONFIG=str(job.ip_config), DGL_CONF_PATH=str(job.config))
    variables["DGL_NUM_SERVER"] = str(job.servers)
    variables["DGL_NUM_SAMPLER"] = str(job.samplers)
    variables["DGL_NUM_CLIENT"] = str(len(job.machines) * clients_of_machine)
    variables.update(job.extra)
    return variables


def server_environment(job, number):
    return dict(environment(job), DGL_ROLE="server", DGL_SERVER_ID=str(number))


def trainer_environment(job, rank):
    variables = environment(job)
    variables["DGL_ROLE"] = "client"
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": len(job.machines) * job.trainers,
        "LOCAL_RANK": rank - rank // job.trainers * job.trainers,
        "MASTER_PORT": job.port - 1,
    }
    for name, value in numbers.items():
        variables[name] = str(value)
    variables["MASTER_ADDR"], *_ = job.machines.values()
    return variables


def start(job, machine, name, variables):
    words = ["exec", "env", "-i", "-C", os.getcwd()]
    for variable, value in variables.items():
        words.append(f"{variable}={value}")
    words.extend(job.command)
    folder = os.path.join(job.folder, machine)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name + ".log"), "wb") as log:
        options = {"stdin": DEVNULL, "stdout": log, "stderr": STDOUT, "start_new_session": True}
        return Popen([*shell(job, machine), shlex.join(words)], **options)


def listening_ports(table):
    ports = set()
    for line in table.splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A":
            _, _, digits = columns[1].rpartition(":")
            ports.add(int(digits, base=16))
    return ports


def wait_for_servers(job, processes, seconds):
    needed = range(job.port, job.port + job.servers)

    def missing():
        texts = []
        for machine in job.machines:
            open_ports = listening_ports(call(job, machine, "cat /proc/net/tcp"))
            for port in sorted(set(needed) - open_ports):
                texts.append(f"{machine} does not listen on port {port}")
        return texts

    wait(missing, processes, seconds)


def stop(job, processes):
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes.values():
            signal_group(process, number)
        deadline = time.monotonic() + 3
        remaining = list(processes.values())
        while remaining and time.monotonic() < deadline:
            remaining = [process for process in remaining if signal_group(process, 0)]
            if remaining:
                time.sleep(0.05)
    graph = os.path.basename(job.config).removesuffix(".json")
    folder = shlex.quote(str(job.shm))
    for machine in job.machines:
        call(job, machine, f"rm -f {folder}/*-kvdata-* {folder}/{shlex.quote(graph)}*")


def run_job(job, seconds):
    processes = {}

    def start_all(count, kind, variables_of):
        numbers = itertools.count()
        for machine in job.machines:
            for number in itertools.islice(numbers, count):
                name = f"{kind}-{number}"
                processes[f"{machine}/{name}"] = start(job, machine, name, variables_of(job, number))

    def running():
        return [f"{name} still runs" for name in processes if processes[name].poll() is None]

    try:
        write_ip_config(job.ip_config, job.machines.values(), job.port)
        start_all(job.servers, "server", server_environment)
        wait_for_servers(job, processes, job.load_seconds)
        start_all(job.trainers, "trainer", trainer_environment)
        wait(running, processes, seconds)
    finally:
        stop(job, processes)
