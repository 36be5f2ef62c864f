"""Checkers of lesson 9, the environment of each process of a job, and a job that ends by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.exercises import Unfinished, exercise, expect, expect_type, plain

Process = tuple[int, dict[str, Any]]  # number of the machine, environment
Wanted = tuple[str, int, dict[str, Any]]  # role, number of the machine, environment

# addresses, servers and trainers of each machine, samplers of each trainer
LAYOUTS = (
    (["10.0.0.7", "10.0.0.8"], 1, 1, 0),
    (["10.0.0.7", "10.0.0.8"], 2, 1, 0),
    (["10.0.0.7", "10.0.0.8"], 1, 2, 1),
    (["10.1.0.9", "10.1.0.3", "10.1.0.5"], 2, 3, 2),
)
HINTS = {
    "DGL_ROLE": "selects the server role",
    "DGL_SERVER_ID": "number of the server in the whole job: machine * servers + k",
    "DGL_NUM_SERVER": "servers on each machine, not in the whole job",
    "DGL_NUM_CLIENT": "trainers and samplers of the whole job. The samplers are counted per trainer.",
    "DGL_NUM_SAMPLER": "samplers of each trainer",
    "RANK": "number of the trainer in the whole job: machine * trainers + k",
    "WORLD_SIZE": "trainers on all machines, without the samplers, which are not ranks",
    "MASTER_ADDR": "address of the machine of rank 0, the same for all trainers",
}


def _expected(addresses: list[str], servers: int, trainers: int, samplers: int) -> list[Wanted]:
    ranks = len(addresses) * trainers
    server = {"DGL_ROLE": "server", "DGL_NUM_SERVER": servers, "DGL_NUM_CLIENT": ranks * (1 + samplers)}
    trainer = {"DGL_NUM_SERVER": servers, "DGL_NUM_SAMPLER": samplers, "WORLD_SIZE": ranks, "MASTER_ADDR": addresses[0]}
    return [
        *(("server", k // servers, {**server, "DGL_SERVER_ID": k}) for k in range(len(addresses) * servers)),
        *(("trainer", k // trainers, {**trainer, "RANK": k}) for k in range(ranks)),
    ]


@exercise(1)
def check_processes(processes: Callable[[list[str], int, int, int], list[Process]]) -> None:
    """Exercise 1: machine and environment of each process that is started by hand."""
    for addresses, servers, trainers, samplers in LAYOUTS:
        got = processes(list(addresses), servers, trainers, samplers)
        what = f"{len(addresses)} machines, servers={servers}, trainers={trainers}, samplers={samplers}"
        expect_type(f"{what}: type of the result", got, "list", "Return a list of pairs (machine, environment).")
        expected = _expected(addresses, servers, trainers, samplers)
        hint = "List the servers and trainers of all machines. Each trainer starts its samplers."
        expect(f"{what}: number of processes", len(got), len(expected), hint)
        for k, (entry, (role, machine, wanted)) in enumerate(zip(got, expected, strict=True)):
            where = f"{what}: entry {k}, a {role}"
            hint = "Each entry is a pair (machine, environment)."
            expect_type(f"{where}: type of the entry", entry, "tuple of 2", hint)
            expect(f"{where}: machine", entry[0], machine, "List the processes machine by machine.")
            environment = {str(name): str(plain(value)) for name, value in dict(entry[1]).items()}
            hint = "Use exactly the variables of the exercise."
            expect(f"{where}: variables", sorted(environment), sorted(wanted), hint)
            for name, value in wanted.items():
                expect(f"{where}: {name}", environment[name], str(value), HINTS[name])


NAMES = ("server-0", "server-1", "trainer-0", "trainer-1")
KILLED = -9


def check_job_ends(folder: str | Path) -> None:
    """Exercise 2: check the files of a job after its rank 1 was killed.

    Args:
        folder: contains ``exits.json``, which ``wait_for_end`` of the lesson writes, and the logs.
    """
    exercise(2)(lambda _: _check_job(Path(folder)))(None)


def _check_job(folder: Path) -> None:
    file = folder / "exits.json"
    if not file.exists():
        raise Unfinished(f"{file} does not exist\n  hint: Write the program, and start it with the lines above.")
    exits: dict[str, int | None] = json.loads(file.read_text())["exits"]
    expect("processes of the job", sorted(exits), list(NAMES), "Start one server and one trainer on each machine.")
    log = (folder / "trainer-0.log").read_text()
    hint = "Do not change the training of six epochs before the fault."
    expect("rank 0 trained six epochs", "rank 0: epoch 5" in log, True, hint)
    expect("exit code of trainer-1", exits["trainer-1"], KILLED, "Start the job with KILL_RANK=1.")
    waiting = [name for name in NAMES if exits[name] is None]
    hint = "A trainer that raises must skip DGL's exit handler, and every server must get the request to exit."
    expect("processes that did not exit in time", waiting, [], hint)
    expect("trainer-0 has an error code", exits["trainer-0"] not in (0, None), True, "Exit with a nonzero code.")
    hint = "Do not kill the servers. Send them a request to exit."
    killed = [name for name in ("server-0", "server-1") if (exits[name] or 0) < 0]
    expect("servers that were killed", killed, [], hint)
    expect("the traceback is in the log of trainer-0", "Traceback" in log, True, "Call traceback.print_exc().")
