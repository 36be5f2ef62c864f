"""Checkers of lesson 12, the whole run: ids on the way back, a plan for K machines, the command for a cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import Unfinished, exercise, expect, expect_type
from support.lessons.whole_run import options_of
from tutorial_lib.cluster.spec import read_ip_config
from tutorial_lib.errors import InputError

# original ids of new ids; none is its own inverse
NODE_MAPS = ([2, 0, 1], [3, 0, 4, 2, 1], [6, 4, 0, 5, 1, 2, 3])


@exercise(1)
def check_to_original(to_original: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Exercise 1: rows of DGL's order, put back into the data set's order."""
    for ids in NODE_MAPS:
        node_map = torch.tensor(ids)
        for truth in (100 + torch.arange(len(ids)), torch.arange(2.0 * len(ids)).reshape(-1, 2)):
            given = truth[node_map]  # row i belongs to new node i
            kept = given.clone()
            got = to_original(given, node_map.clone())
            shape = "classes, shape (N,)" if truth.dim() == 1 else "logits, shape (N, 2)"
            hint = "row i belongs to original node node_map[i]: write it there"
            expect(f"{shape}, node_map {ids}: what came back", got, truth, hint)
            expect(f"{shape}: the argument is as before", torch.equal(given, kept), True, "write into a new tensor")


COUNTS = ("nodes", "edges", "train", "widths", "machines", "batch", "remote")  # the last: remote rows of a step
PLANS: tuple[tuple[tuple[Any, ...], tuple[int, int]], ...] = (
    ((1000, 20_000, 100, (100, 16, 7), 1, 30, 0), (1000 * 123 * 4 + 20_000 * 32, 0)),
    ((1001, 20_001, 101, (8, 4), 2, 10, 25), (501 * 12 * 4 + 10_001 * 32, 2 * 6 * 25 * 8 * 4)),
    ((900, 9_000, 800, (50, 20, 20, 3), 4, 100, 9), (225 * 93 * 4 + 2_250 * 32, 4 * 2 * 9 * 50 * 4)),
)


@exercise(2)
def check_plan_machines(plan_machines: Callable[..., tuple[int, int]]) -> None:
    """Exercise 2: shared memory of a machine, and bytes of features on the wire in an epoch."""
    for row, (memory, wire) in PLANS:
        counts = dict(zip(COUNTS, row, strict=True))
        got = plan_machines(**counts)
        expect_type(f"{counts}: what came back", got, "tuple of 2")
        where = ", ".join(f"{name} {value}" for name, value in counts.items())
        hint = "own nodes x all widths x 4, and own edges x 32, both rounded up; without floats: (a + b - 1) // b"
        expect(f"{where}: bytes in the memory of a machine", got[0], memory, hint)
        hint = "machines x steps x rows x bytes of a row; a last batch that is not full is a step, too"
        expect(f"{where}: bytes on the wire in an epoch", got[1], wire, hint)


# addresses, first port, shared, login; and the options that differ from those of the finale alone
CLUSTERS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((["10.1.0.5", "10.1.0.6", "10.1.0.9"], 30050, True, ("", 22)), {}),
    (
        (["192.168.7.20", "192.168.7.4"], 41000, False, ("gnn", 2222)),
        {"copy_to": "/scratch/finale", "ssh_username": "gnn", "ssh_port": 2222},
    ),
    ((["172.16.0.1"], 30050, False, ("lab", 22)), {"copy_to": "/scratch/finale", "ssh_username": "lab"}),
)
LOOKED_AT = ("copy_to", "ssh_username", "ssh_port", "emulate", "machines", "wire", "dataset", "full", "allow_public")


@exercise(3)
def check_real_cluster(real_cluster: Callable[..., tuple[str, Sequence[str]]]) -> None:
    """Exercise 3: the address file and the command line are read as the finale reads them; nothing is contacted."""
    for row, wanted in CLUSTERS:
        cluster: dict[str, Any] = dict(zip(("addresses", "first_port", "shared", "login"), row, strict=True))
        _check_cluster(real_cluster, cluster, wanted)


def _check_cluster(
    real_cluster: Callable[..., tuple[str, Sequence[str]]], cluster: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    where = f"{len(cluster['addresses'])} machine(s), shared={cluster['shared']}, login {cluster['login']}"
    got = real_cluster(**{**cluster, "addresses": list(cluster["addresses"])})
    expect_type(f"{where}: what came back", got, "tuple of 2", "return a text and a list of words")
    text, words = got
    expect_type(f"{where}: the first thing", text, "str", "return a text and a list of words")
    expected = [(address, cluster["first_port"]) for address in cluster["addresses"]]
    expect(f"{where}: machines in the address file", _machines_in(text), expected, "one 'address port' on each line")
    try:
        options = options_of(words)
    except InputError as error:
        raise Unfinished(f"{where}: the command {list(words)} would be refused\n  {error.message}") from None
    name = options["ip_config"]
    expect(f"{where}: --ip_config", None if name is None else str(name), "ip_config.txt")
    neutral = {"full": True, "allow_public": False}
    for option in LOOKED_AT:
        allowed = [wanted.get(option, neutral.get(option))]
        if option == "ssh_port" and option not in wanted:
            allowed.append(22)  # said in so many words
        if options[option] not in allowed:
            expect(f"{where}: what the finale reads as {option}", options[option], allowed[0])


def _machines_in(text: str) -> list[tuple[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ip_config.txt"
        path.write_text(text)
        try:
            return [(machine.address, machine.port) for machine in read_ip_config(path)]
        except InputError as error:
            said = error.message.replace(str(path), path.name)
            raise Unfinished(f"the address file {text!r} would be refused\n  {said}") from None
