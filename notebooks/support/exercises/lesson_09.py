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
    "DGL_ROLE": "a server needs it to know that it is one",
    "DGL_SERVER_ID": "it counts through all servers: machine * servers + k",
    "DGL_NUM_SERVER": "servers on each machine, not in all",
    "DGL_NUM_CLIENT": "trainers are per machine, samplers are per trainer, and a sampler is a client too",
    "DGL_NUM_SAMPLER": "samplers of each trainer",
    "RANK": "it counts through all trainers: machine * trainers + k",
    "WORLD_SIZE": "trainers on all machines; samplers are no ranks",
    "MASTER_ADDR": "one address for all: that of the machine of rank 0",
}


def _expected(addresses: list[str], servers: int, trainers: int, samplers: int) -> list[Wanted]:
    ranks = len(addresses) * trainers
    of_servers = {"DGL_ROLE": "server", "DGL_NUM_SERVER": servers, "DGL_NUM_CLIENT": ranks * (1 + samplers)}
    of_trainers = {
        **{"DGL_NUM_SERVER": servers, "DGL_NUM_SAMPLER": samplers, "WORLD_SIZE": ranks},
        "MASTER_ADDR": addresses[0],
    }
    return [
        *(("server", k // servers, {**of_servers, "DGL_SERVER_ID": k}) for k in range(len(addresses) * servers)),
        *(("trainer", k // trainers, {**of_trainers, "RANK": k}) for k in range(ranks)),
    ]


@exercise(1)
def check_processes(processes: Callable[[list[str], int, int, int], list[Process]]) -> None:
    """Exercise 1: machine and environment of each process that is started by hand."""
    for addresses, servers, trainers, samplers in LAYOUTS:
        got = processes(list(addresses), servers, trainers, samplers)
        what = f"{len(addresses)} machines, servers={servers}, trainers={trainers}, samplers={samplers}"
        expect_type(f"{what}: what came back", got, "list", "return a list of pairs: (machine, environment)")
        expected = _expected(addresses, servers, trainers, samplers)
        hint = "servers and trainers of all machines; samplers are started by their trainers"
        expect(f"{what}: number of processes", len(got), len(expected), hint)
        for k, (entry, (role, machine, wanted)) in enumerate(zip(got, expected, strict=True)):
            where = f"{what}: entry {k}, a {role}"
            expect_type(f"{where}: what it is", entry, "tuple of 2", "each entry is (machine, environment)")
            expect(f"{where}: its machine", entry[0], machine, "machine after machine")
            environment = {str(name): str(plain(value)) for name, value in dict(entry[1]).items()}
            expect(f"{where}: names", sorted(environment), sorted(wanted), "exactly the names of the exercise")
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
        raise Unfinished(f"{file} is not there\n  hint: write the program, and start it with the lines above")
    exits: dict[str, int | None] = json.loads(file.read_text())["exits"]
    expect("processes of the job", sorted(exits), list(NAMES), "one server and one trainer on each machine")
    log = (folder / "trainer-0.log").read_text()
    hint = "leave the training as it is: six epochs, then the fault"
    expect("rank 0 trained its six epochs", "rank 0: epoch 5" in log, True, hint)
    expect("exit code of trainer-1", exits["trainer-1"], KILLED, "start the job with KILL_RANK=1")
    waiting = [name for name in NAMES if exits[name] is None]
    hint = "a trainer that raises must not run DGL's exit handler, and every server must be told to end"
    expect("processes that still ran when the time was up", waiting, [], hint)
    expect("trainer-0 left with an error", exits["trainer-0"] not in (0, None), True, "a job that failed must say so")
    hint = "nobody should kill the servers from outside: a request makes them end"
    killed = [name for name in ("server-0", "server-1") if (exits[name] or 0) < 0]
    expect("servers that were killed", killed, [], hint)
    expect("the traceback is in the log of trainer-0", "Traceback" in log, True, "traceback.print_exc()")
