"""Checkers of lesson 9, the anatomy of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type

# (addresses and first ports, trainers, samplers, servers), clients of each server, where each server listens
LAYOUT_CASES = (
    (([("10.0.0.1", 30050), ("10.0.0.2", 30050)], 1, 0, 1), 2, ["10.0.0.1:30050", "10.0.0.2:30050"]),
    (
        ([("10.0.0.1", 30050), ("10.0.0.7", 31000)], 4, 2, 2),
        24,
        ["10.0.0.1:30050", "10.0.0.1:30051", "10.0.0.7:31000", "10.0.0.7:31001"],
    ),
    (([("192.168.3.4", 20090)], 2, 1, 3), 4, ["192.168.3.4:20090", "192.168.3.4:20091", "192.168.3.4:20092"]),
)


@exercise(1)
def check_layout_numbers(
    layout_numbers: Callable[[list[tuple[str, int]], int, int, int], tuple[int, list[str]]],
) -> None:
    """Exercise 1: DGL_NUM_CLIENT and the address of each server."""
    for (machines, trainers, samplers, servers), clients, addresses in LAYOUT_CASES:
        got = layout_numbers(list(machines), trainers, samplers, servers)
        what = f"machines {machines}, trainers={trainers}, samplers={samplers}, servers={servers}"
        expect_type(f"{what}: what came back", got, "tuple of 2", "return two things: a number and a list")
        hint = "trainers are per machine, samplers are per trainer, and a sampler is a client too"
        expect(f"{what}: DGL_NUM_CLIENT", got[0], clients, hint)
        hint = "DGL_SERVER_ID counts through all servers of machine 0, then those of machine 1; ports go up by one"
        expect(f"{what}: server addresses", got[1], addresses, hint)


# first ids of the parts and the end of the last, nodes, this machine, bytes of a row; expected rows by machine, bytes
ROW_CASES = (
    ([0, 5, 9], [0, 4, 5, 8, 1], 0, 400, [3, 2], 800),
    ([0, 5, 9], [0, 4, 5, 8, 1], 1, 400, [3, 2], 1200),
    ([0, 10, 10, 30, 40], [9, 10, 29, 30, 39, 15], 2, 8, [1, 0, 3, 2], 24),
    ([0, 6, 12], [], 0, 16, [0, 0], 0),
)


@exercise(2)
def check_rows_and_bytes(rows_and_bytes: Callable[[list[int], Tensor, int, int], tuple[Tensor, int]]) -> None:
    """Exercise 2: whose rows they are, and how many bytes come over the wire."""
    for bounds, nodes, here, row_bytes, rows, remote in ROW_CASES:
        got = rows_and_bytes(list(bounds), torch.tensor(nodes, dtype=torch.int64), here, row_bytes)
        what = f"bounds {bounds}, nodes {nodes}, machine {here}, {row_bytes} bytes a row"
        expect_type(f"{what}: what came back", got, "tuple of 2", "return two things: a tensor and a number")
        hint = "part p owns the ids from bounds[p] up to, not including, bounds[p + 1]"
        expect(f"{what}: rows of each machine", got[0], torch.tensor(rows), hint)
        expect(f"{what}: bytes over the wire", got[1], remote, "rows of this machine come from shared memory")


# receiver -> sender -> bytes; bytes per second of each cable, in each direction; seconds, busiest machine
TRAFFIC_CASES: tuple[tuple[dict[str, dict[str, int]], int, float, str], ...] = (
    ({"a": {"b": 800}, "b": {"a": 200}}, 100, 8.0, "a"),  # both cables carry 800; a is named first
    ({"a": {"b": 100, "c": 100}, "b": {"a": 300, "c": 0}, "c": {"a": 500, "b": 100}}, 100, 8.0, "a"),
    ({"a": {"b": 400, "c": 500}, "b": {"a": 100, "c": 300}, "c": {"a": 100, "b": 100}}, 50, 18.0, "a"),
    ({"a": {"b": 10, "c": 60}, "b": {"a": 20, "c": 90}, "c": {"a": 30, "b": 10}}, 10, 15.0, "c"),
)


@exercise(3)
def check_busiest_cable(busiest_cable: Callable[[Mapping[str, Mapping[str, int]], int], tuple[str, float]]) -> None:
    """Exercise 3: read a traffic matrix."""
    for traffic, rate, seconds, machine in TRAFFIC_CASES:
        copy: dict[str, Any] = {receiver: dict(row) for receiver, row in traffic.items()}
        got = busiest_cable(copy, rate)
        what = f"received {traffic}, {rate} bytes per second"
        expect_type(f"{what}: what came back", got, "tuple of 2", "return two things: a name and seconds")
        hint = "a row of the dictionary is what a machine receives; what it sends is one entry of each other row"
        expect(f"{what}: the busiest machine", got[0], machine, hint)
        expect(f"{what}: seconds", got[1], seconds, "both directions go at the same time: take the larger one")
