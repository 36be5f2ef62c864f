"""Memory that the trainers of a machine share, and the rows and lists in it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from row_support import Book, Rows, Wire, gathers

from tutorial_lib.batches.mates import Mates
from tutorial_lib.batches.neighbours import NeighbourLists
from tutorial_lib.batches.service import in_edges_of_part
from tutorial_lib.batches.table import RowTable


def two_tables(tensor: Rows, budget: int) -> list[RowTable]:
    """Of the two trainers of a machine."""
    mates = [Mates(0, place, 2, gather) for place, gather in enumerate(gathers(2))]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda own: RowTable(tensor, Book(20, 45), budget, mates=own), mates))


@pytest.mark.parametrize("room", [17, 18])
def test_a_row_that_one_trainer_has_brought_the_other_need_not(monkeypatch, tmp_path, room):
    """Where both together have room for all 35 remote rows, and one that the end of a page costs."""
    everything = torch.randn(60, 100)
    tensor = Rows(everything, 20, 45, shared=tmp_path / "rows")
    Wire(monkeypatch, tensor)
    first, second = two_tables(tensor, room * 400)
    ids = torch.tensor([3, 50, 21, 59, 3, 0])
    assert torch.equal(first[ids], everything[ids])
    assert torch.equal(second[ids], everything[ids])
    assert torch.equal(second[torch.arange(60)], everything)
    assert torch.equal(first[torch.arange(60)], everything)
    assert [len(rows) for rows in tensor.asked] == ([4, 31] if room == 18 else [4, 4, 31, 31])
    assert (first.used, second.used) == ((4, 31) if room == 18 else (17, 17))


def test_what_is_on_its_way_is_not_asked_for_again(monkeypatch, tmp_path):
    """A place in common memory is told when its row is there, not before."""
    everything = torch.randn(60, 100)
    tensor = Rows(everything, 20, 45, shared=tmp_path / "rows")
    Wire(monkeypatch, tensor)
    first, second = two_tables(tensor, 18 * 400)
    batches = [torch.arange(10), torch.arange(5, 15), torch.arange(30, 50)]
    for ids in batches:
        first.expect(ids)
    first.ask(batches[0])
    first.ask(batches[1])
    assert (second.slot_of[:15] == -1).all()
    assert not second._brought.any()
    for ids in batches:
        assert torch.equal(first[ids], everything[ids])
    assert [len(rows) for rows in tensor.asked] == [10, 5, 5]
    assert torch.equal(second[batches[1]], everything[batches[1]])
    assert len(tensor.asked) == 3


def test_rows_that_are_not_in_shared_memory_are_each_trainer_s_own(monkeypatch):
    everything = torch.randn(60, 5)
    tensor = Rows(everything, 20, 45)
    Wire(monkeypatch, tensor)
    for table in two_tables(tensor, 18 * 20):
        assert torch.equal(table[torch.arange(60)], everything)
    assert [len(rows) for rows in tensor.asked] == [35, 35]


def test_where_the_system_lets_nobody_share_a_file_each_trainer_has_its_own(monkeypatch, tmp_path):
    def refused(*_: object) -> int:
        raise PermissionError

    everything = torch.randn(60, 100)
    tensor = Rows(everything, 20, 45, shared=tmp_path / "rows")
    Wire(monkeypatch, tensor)
    monkeypatch.setattr(os, "memfd_create", refused)
    for table in two_tables(tensor, 18 * 400):
        assert torch.equal(table[torch.arange(60)], everything)
        assert table.used == 18
    mates = [Mates(0, place, 2, gather) for place, gather in enumerate(gathers(2))]
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda own: own.common(lambda: {"place": torch.tensor([own.place])}), mates))
    assert [int(each["place"]) for each in made] == [0, 1]


def test_a_machine_without_nodes_takes_part_in_every_question():
    """Else the trainers of the others would wait for its trainers."""
    asked = []

    def gather(value):
        asked.append(value)
        return [value]

    for begin, end in ((0, 0), (20, 45)):
        tensor = Rows(torch.randn(60, 5), begin, end)
        RowTable(tensor, Book(begin, end), 10**6, mates=Mates(0, 0, 1, gather))
    assert len(asked) == 4


def test_one_trainer_asks_for_the_lists_of_neighbours(part_of_three):
    graph, edges = part_of_three
    mates = [Mates(0, place, 2, gather) for place, gather in enumerate(gathers(2))]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda own: NeighbourLists(graph, 0, 2, mates=own), mates)
    assert graph.reads == 1
    nodes = torch.arange(3)
    assert [lists.whole(nodes).sources.tolist() for lists in (first, second)] == [edges] * 2
    first.sources[0] = 7
    assert second.sources[0] == 7  # the same memory


@pytest.fixture
def part_of_three():
    """A graph of six nodes of which this part has three, and their in-neighbours."""

    class Graph:
        reads = 0

        def get_partition_book(self) -> Book:
            return Book(0, 3)

        def num_nodes(self) -> int:
            return 6

        @property
        def local_partition(self) -> SimpleNamespace:
            self.reads += 1
            indptr, indices = torch.tensor([0, 2, 2, 3]), torch.tensor([3, 1, 0])
            node_attributes = {"_ID": torch.tensor([0, 1, 2, 5])}
            return SimpleNamespace(csc_indptr=indptr, indices=indices, node_attributes=node_attributes)

    graph = Graph()
    assert in_edges_of_part(graph.local_partition, 3)[0].tolist() == [0, 2, 2, 3]
    graph.reads = 0
    return graph, [5, 1, 0]


def test_a_file_of_a_trainer_is_open_to_another_process():
    """And in no folder, so that it ends with them."""
    room = Mates(0, 0, 1, lambda value: [value]).room(9)
    assert room is not None
    write = f"with open({str(room)!r}, 'r+b') as file: file.write(b'written')"
    subprocess.run([sys.executable, "-I", "-S", "-c", write], check=True, timeout=60)
    assert room.read_bytes() == b"written\0\0"
    assert "(deleted)" in os.readlink(room)
    assert Mates(0, 0, 1, lambda value: [value]).room(0) is None
