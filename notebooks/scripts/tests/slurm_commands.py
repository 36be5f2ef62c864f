"""Small replacements for Slurm's commands and for the program of a job, for tests without Slurm.

``install`` writes them to a folder, which comes first in PATH. Each call appends its name, arguments and variables to
the file ``calls``. ``srun`` starts the tasks with the variables of Slurm on this machine, and like Slurm,

- a step without --overlap waits until other steps without this option have ended,
- SIGTERM to ``srun`` kills its tasks with SIGKILL, so they cannot clean up,
- with --kill-on-bad-exit, ``srun`` ends its tasks after the first failure.

``python3`` is a server or a trainer. A server ends after the trainers. The file ``plan`` contains the tasks that fail.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("srun", "scontrol", "scancel", "getent", "python3", "rm", "sbatch")


def install(folder):
    """Write the commands to a folder."""
    for name in COMMANDS:
        path = folder / name
        path.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}\nmain()\n")
        path.chmod(0o755)


def record(name, *words):
    with (FOLDER / "calls").open("a") as file:
        file.write(json.dumps([name, list(words), dict(os.environ)]) + "\n")


def expand(nodes):
    """Return the names in a list such as ``node-[3-5]``."""
    start, first, last = re.fullmatch(r"(.*)\[(\d+)-(\d+)\]", nodes).groups()
    return [f"{start}{number}" for number in range(int(first), int(last) + 1)]


def scontrol(action, *words):
    record("scontrol", action, *words)
    if action == "show" and words[0].startswith("hostname"):
        print(*expand(words[1] if len(words) > 1 else os.environ["SLURM_JOB_NODELIST"]), sep="\n")


def getent(_, host):
    address = f"10.1.0.{host.split('-')[1]}"
    print(f"{address}  STREAM {host}", f"{address}  DGRAM", f"{address}  RAW", sep="\n")


def scancel(*words):
    record("scancel", *words)
    if any("TERM" in word for word in words):
        for file in FOLDER.glob("step-*"):
            for pid in json.loads(file.read_text())["tasks"]:
                os.kill(pid, signal.SIGTERM)


def option(words, long, short, default):
    text = " ".join(words)
    found = re.search(rf"(?:--{long}[= ]|-{short}\s?)(\d+)", text)
    return int(found[1]) if found else default


def srun(*words):
    last = next(k for k, word in enumerate(words) if not word.startswith("-") and not re.fullmatch(r"\d+", word))
    options, command = words[:last], words[last:]
    record("srun", *words)
    nodes = option(options, "nodes", "N", int(os.environ["SLURM_JOB_NUM_NODES"]))
    tasks = option(options, "ntasks", "n", int(os.environ["SLURM_NTASKS"]))
    step = FOLDER / f"step-{os.getpid()}"
    exclusive = "--overlap" not in options
    while exclusive and any(json.loads(file.read_text())["exclusive"] for file in FOLDER.glob("step-*")):
        time.sleep(0.05)
    started = []
    for task in range(tasks):
        node, local = divmod(task, -(-tasks // nodes))
        variables = {"PROCID": task, "NODEID": node, "LOCALID": local, "NTASKS": tasks}
        variables = {f"SLURM_{name}": str(value) for name, value in variables.items()}
        started.append(subprocess.Popen(command, env={**os.environ, **variables}))
    (new := step.with_name(f"new-{step.name}")).write_text(
        json.dumps({"exclusive": exclusive, "tasks": [task.pid for task in started]})
    )
    new.rename(step)

    def kill(*_):
        for task in started:
            task.kill()

    signal.signal(signal.SIGTERM, kill)
    end_all = any(word.startswith(("--kill-on", "-K")) for word in options)
    while None in (codes := [task.poll() for task in started]):
        if any(codes) and end_all:
            for task in started:
                task.terminate()
        time.sleep(0.02)
    step.unlink()
    sys.exit(any(codes))


def terminated(*_):
    record("TERM")
    os._exit(143)


def python3(*words):
    signal.signal(signal.SIGTERM, terminated)
    role, rank = os.environ.get("DGL_ROLE"), os.environ["SLURM_PROCID"]
    record(f"{role} {rank}", *words)
    plan = json.loads((FOLDER / "plan").read_text())
    if f"{role} {rank}" in plan["fail"]:
        sys.exit(3)
    (FOLDER / f"running-{role}-{rank}").touch()
    ends = FOLDER / ("trainers-end" if role == "client" else "servers-end")
    while not ends.exists():  # the test creates the first file, and the last trainer the second
        if (FOLDER / "save").exists():
            Path(words[words.index("--checkpoint") + 1]).touch()
            (FOLDER / "save").unlink(missing_ok=True)
        time.sleep(0.02)
    if role == "client":
        (FOLDER / "servers-end").touch()


def main():
    global FOLDER
    FOLDER = Path(os.environ["SLURM_COMMANDS"])
    name = Path(sys.argv[0]).name
    {"srun": srun, "scontrol": scontrol, "scancel": scancel, "getent": getent, "python3": python3}.get(
        name, lambda *words: record(name, *words)
    )(*sys.argv[1:])
