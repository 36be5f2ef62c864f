"""The checkers of lesson 9 distinguish right and wrong answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_09

processes = solutions("09").processes


def changed(**changes: Any) -> Any:
    """Return the solution with some variables changed. A function gets (layout, value)."""

    def answer(addresses: list[str], servers: int, trainers: int, samplers: int) -> list[tuple[int, dict[str, Any]]]:
        layout = (len(addresses), servers, trainers, samplers)
        found = processes(addresses, servers, trainers, samplers)
        for _machine, environment in found:
            for name in environment.keys() & changes.keys():
                environment[name] = changes[name](layout, environment[name])
        return found

    return answer


def as_texts(*layout: Any) -> list[tuple[int, dict[str, str]]]:
    """The solution with strings as values and NumPy integers as machines."""
    found = processes(*layout)
    return [(np.int64(machine), {name: str(value) for name, value in of.items()}) for machine, of in found]


def tensors(*layout: Any) -> list[tuple[Any, dict[str, Any]]]:
    return [(torch.tensor(machine), of) for machine, of in processes(*layout)]


def trainers_first(*layout: Any) -> list[Any]:
    found = processes(*layout)
    return sorted(found, key=lambda entry: "DGL_ROLE" in entry[1])


def server_by_server(addresses: list[str], servers: int, trainers: int, samplers: int) -> list[Any]:
    found, count = processes(addresses, servers, trainers, samplers), len(addresses)
    of_servers = [(k % count, of) for k, (_machine, of) in enumerate(found[: count * servers])]
    return of_servers + found[count * servers :]


def with_samplers(addresses: list[str], servers: int, trainers: int, samplers: int) -> list[Any]:
    found = processes(addresses, servers, trainers, samplers)
    return found + [(0, {})] * (len(addresses) * trainers * samplers)


WRONG = {
    "stub": (lambda *_: None, "type of the result"),
    "environments alone": (lambda *layout: [of for _machine, of in processes(*layout)], "Each entry is"),
    "one machine only": (lambda a, *layout: processes(a[:1], *layout), "number of processes"),
    "samplers started by hand": (with_samplers, "Each trainer starts its samplers"),
    "trainers first": (trainers_first, "variables"),
    "server by server": (server_by_server, "machine by machine"),
    "samplers do not connect": (
        changed(DGL_NUM_CLIENT=lambda at, _: at[0] * at[2]),
        "trainers and samplers of the whole job",
    ),
    "samplers of a machine": (
        changed(DGL_NUM_CLIENT=lambda at, _: at[0] * (at[2] + at[3])),
        "counted per trainer",
    ),
    "servers in all": (changed(DGL_NUM_SERVER=lambda at, value: at[0] * value), "servers on each machine"),
    "ids start on each machine": (
        changed(DGL_SERVER_ID=lambda at, value: value % at[1]),
        "number of the server in the whole job",
    ),
    "ranks start on each machine": (
        changed(RANK=lambda at, value: value % at[2]),
        "number of the trainer in the whole job",
    ),
    "samplers are ranks": (changed(WORLD_SIZE=lambda at, value: value * (1 + at[3])), "samplers, which are not ranks"),
    "another master": (changed(MASTER_ADDR=lambda *_: "127.0.0.1"), "the same for all trainers"),
}


test_right_processes, test_wrong_processes = answer_tests(
    lesson_09.check_processes, [processes, as_texts, tensors], WRONG
)


RANKS = "".join(f"rank 0: epoch {epoch}\n" for epoch in range(6))
ENDED = {"server-0": 0, "server-1": 0, "trainer-0": 1, "trainer-1": -9}
LOG = RANKS + "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n"


@pytest.fixture
def left(tmp_path: Path) -> Callable[[Any], tuple[Path]]:
    """Return the folder of a job with these exit codes and a log of rank 0."""

    def write(answer: Any) -> tuple[Path]:
        if answer:
            (tmp_path / "exits.json").write_text(json.dumps({"seconds": 5.0, "exits": answer[0]}))
            (tmp_path / "trainer-0.log").write_text(answer[1])
        return (tmp_path,)

    return write


HANGS = {
    "nothing changed": (
        ({**ENDED, "server-0": None, "server-1": None, "trainer-0": None}, LOG),
        "did not exit in time",
    ),
    "servers not told": (({**ENDED, "server-0": None, "server-1": None}, LOG), "every server"),
    "killed from outside": (({**ENDED, "server-0": -9, "server-1": -9}, LOG), "servers that were killed"),
    "as if all were well": (({**ENDED, "trainer-0": 0}, LOG), "nonzero code"),
    "traceback hidden": ((ENDED, RANKS), "traceback.print_exc"),
    "no fault": (({**ENDED, "trainer-0": 0, "trainer-1": 0}, RANKS), "KILL_RANK=1"),
    "no training": ((ENDED, LOG.replace(RANKS, "")), "six epochs"),
    "another job": (({"trainer-0": 1}, LOG), "Start one server and one trainer"),
    "not started": (None, "exits.json does not exist"),
}
ENDS = [(ENDED, LOG), ({**ENDED, "server-0": 1, "server-1": 1, "trainer-0": 3}, LOG)]
test_a_job_that_ends, test_a_job_that_does_not_end = answer_tests(lesson_09.check_job_ends, ENDS, HANGS, "left")
