"""A cache of remote feature rows that evicts the row whose next use is furthest away.

Batches are sampled before their rows are pulled, so the cache knows which rows the next batches need. If it is full,
it keeps the rows that are needed soonest (Belady, IBM Systems Journal 5, 1966). No other rule pulls fewer rows,
provided that the next use of every cached row is known. ``look_ahead`` adapts the number of announced batches to that.

Every batch goes through three calls. ``announce`` registers its node IDs, ``request`` sends for its missing rows
without waiting, and ``slots`` waits for them. Several batches may be announced and two requested at a time.

A slot is the position of a row:

    0 to first - 1                  rows of this machine's part, in the memory that its servers share
    first to first + capacity - 1   cached rows of other machines
    first + capacity and more       rows of the current batch that did not fit into the cache
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from dgl.distributed.kvstore import PullRequest
from torch import Tensor

from tutorial_lib.sampling.rpc import receive, request

ABSENT = -1
NEVER = 2**31 - 1  # next use of a row that no announced batch needs


class FeatureCache:
    """Reads rows of a ``DistTensor`` by node ID, like the tensor itself: ``cache[ids]``.

    The rows must not change. A row that is here is never pulled again.

    Args:
        tensor: ``DistTensor`` of shape (N, ...), for example the node features.
        book: partition book of the graph.
        budget: bytes for cached rows of other machines.
        most_ahead: upper limit of ``look_ahead``. With 0, the first rows that fill the cache stay forever.
        scratch: int32 tensor of shape (N,), filled with -1 between calls. Callers in the same thread may share it.

    Attributes:
        shape: shape of the tensor.
        dtype: type of the tensor.
        row_bytes: size of a row.
        used: number of cached rows.
        asked: number of remote rows that batches needed so far, and ``hits`` of these were cached.
        look_ahead: number of batches to announce before the rows of the batch before them are requested. It grows
            until the next use of each cached row is known, and stays 0 while there is room for all rows.
    """

    def __init__(
        self, tensor: Any, book: Any, budget: int, most_ahead: int = 32, scratch: Tensor | None = None
    ) -> None:
        self.tensor, self.book, self.shape, self.dtype = tensor, book, tensor.shape, tensor.dtype
        self.own = tensor.local_partition
        self.first = len(self.own)
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        remote = self.shape[0] - self.first
        self.capacity = min(remote, budget // max(1, self.row_bytes))
        self.rows = torch.empty((self.capacity, *self.shape[1:]), dtype=self.dtype)  # of other machines
        self.slot_of = torch.full((self.shape[0],), ABSENT, dtype=torch.int32)
        self.slot_of[book.partid2nids(book.partid)] = torch.arange(self.first, dtype=torch.int32)
        self.used = self.asked = self.hits = 0
        self.look_ahead, self.most_ahead = 0, most_ahead if self.capacity < remote else 0
        self._scratch = torch.full_like(self.slot_of, ABSENT) if scratch is None else scratch
        self._cached = torch.empty(self.capacity, dtype=torch.int64)  # node ID of each cached row
        self._passing = torch.empty(0, dtype=torch.int64)  # IDs of the last batch's rows that did not fit
        self._announced: deque[tuple[Tensor, int]] = deque()  # IDs of remote rows, and number of rows
        self._requests: deque[_Request] = deque()  # in the order of the batches, before the announced ones
        self._count = (0, 0)

    def announce(self, ids: Tensor) -> None:
        """Register the node IDs of the next batch. An ID may occur more than once."""
        self._scratch[ids.long()] = order = torch.arange(len(ids), dtype=torch.int32)
        once = ids[torch.index_select(self._scratch, 0, ids) == order].long()
        self._scratch[once] = ABSENT
        slots = torch.index_select(self.slot_of, 0, once)
        self._announced.append((once[(slots < 0) | (slots >= self.first)], len(once)))

    def request(self, ids: Tensor) -> None:
        """Send for the missing rows of the first announced batch, and return without waiting.

        From now on, ``slot_of`` describes the cache after their arrival. The rows themselves do not move until then,
        so the slots of earlier batches stay valid until the next call of ``slots``.
        """
        if not self._announced:
            self.announce(ids)
        moves = self._evict()
        remote, rows = self._announced.popleft()
        absent = remote[torch.index_select(self.slot_of, 0, remote) == ABSENT].sort().values
        room = min(len(absent), self.capacity - self.used)
        places = torch.arange(self.used, self.used + len(absent))
        places[room:] += self.capacity - self.used - room
        self.slot_of[absent] = (self.first + places).int()
        if self.most_ahead:
            self._cached[self.used : self.used + room] = absent[:room]
        self.used += room
        self._passing = absent[room:]
        slots = torch.index_select(self.slot_of, 0, ids)
        key = self.tensor.kvstore_key
        sent, positions = request(self.book, absent, lambda some: PullRequest(key, some)) if len(absent) else ({}, [])
        self._requests.append(_Request(ids, slots, rows, len(remote), places, moves, sent, positions))

    def slots(self, ids: Tensor) -> Tensor:
        """Wait for the rows of the nodes and return their slots, for ``read`` and ``mean``.

        The slots are int32 and valid until the next call.
        """
        if not self._requests:
            self.request(ids)
        found = self._requests.popleft()
        self._land(found)
        same = found.ids is ids or torch.equal(found.ids.long(), ids.long())
        if not same or bool((found.slots == ABSENT).any()):  # the caller announced another batch
            self.cancel()
            return self.slots(ids)
        pulled = len(found.places)
        self._count = found.rows - pulled, pulled
        self.asked += found.remote
        self.hits += found.remote - pulled
        return found.slots

    def count(self) -> tuple[int, int]:
        """Return how many different rows of the last batch were on this machine, and how many were pulled."""
        return self._count

    def read(self, slots: Tensor) -> Tensor:
        """Return a copy of the rows in the given slots."""
        far = (slots >= self.first).nonzero().flatten()
        if len(far) == len(slots):
            return torch.index_select(self.rows, 0, slots - self.first)
        found = torch.index_select(self.own, 0, slots.clamp(max=self.first - 1))
        found[far] = torch.index_select(self.rows, 0, slots[far] - self.first)
        return found

    @torch.no_grad()
    def mean(self, slots: Tensor, indptr: Tensor) -> Tensor:
        """Return the mean row of each of D lists of slots, without a copy of the rows.

        Args:
            slots: int32 (E,), list after list.
            indptr: int32 (D + 1,) index pointer of the lists.

        Returns:
            Tensor of shape (D, F). Empty lists have zeros.
        """
        far = slots >= self.first
        before = F.pad(torch.cumsum(far, 0, dtype=torch.int32), (1, 0))[indptr.long()]
        total = _sums(self.own, slots[~far], indptr - before)
        lists = before.diff().nonzero().flatten()  # with rows of other machines, a small part
        pointer = F.pad(before[1:][lists], (1, 0))
        total.index_add_(0, lists, _sums(self.rows, slots[far] - self.first, pointer))
        return total.div_(indptr.diff().clamp(min=1).unsqueeze(1))

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.read(self.slots(ids))

    def cancel(self) -> None:
        """Forget the announced batches. Requested rows are waited for."""
        while self._requests:
            self._land(self._requests.popleft())
        self._announced.clear()

    def _evict(self) -> tuple[Tensor, Tensor]:
        """Choose among the cached rows and the last batch's other rows those that are needed soonest.

        Returns:
            Positions in ``rows`` to which some of the latter move, and their present positions.
        """
        passing, nothing = self._passing, self._passing[:0]
        self._passing = nothing
        if not (self.capacity and self.most_ahead and self.used == self.capacity):
            self.slot_of[passing] = ABSENT
            return nothing, nothing
        next_use = torch.full((self.capacity + len(passing),), NEVER, dtype=torch.int32)
        for number, (ids, _) in reversed(list(enumerate(self._announced))):
            places = torch.index_select(self.slot_of, 0, ids) - self.first
            next_use[places[places >= 0].long()] = number
        cached, new = next_use[: self.capacity], next_use[self.capacity :]
        wanted = min(int((new < NEVER).sum()), self.capacity)
        soonest, incoming = torch.topk(new, wanted, largest=False)
        latest, outgoing = torch.topk(cached, wanted)
        better = int((soonest < latest).sum())  # both are sorted, so these are the first pairs
        incoming, outgoing = incoming[:better], outgoing[:better]
        self.slot_of[self._cached[outgoing]] = ABSENT
        self.slot_of[passing] = ABSENT
        self._cached[outgoing] = passing[incoming]
        self.slot_of[passing[incoming]] = (self.first + outgoing).int()
        cached[outgoing] = soonest[:better]
        self._adapt(int(cached.max()))
        return outgoing, self.capacity + incoming

    def _adapt(self, last: int) -> None:
        """Adapt ``look_ahead`` to the next use of the row that is needed last."""
        if last == NEVER and len(self._announced) > self.look_ahead:  # with fewer, the iteration is about to end
            self.look_ahead = min(self.look_ahead + 1, self.most_ahead)
        elif last < len(self._announced) - 2 and self.look_ahead:
            self.look_ahead -= 1

    def _land(self, found: _Request) -> None:
        """Store requested rows. The rows of the batch before them have been read."""
        to, origin = found.moves
        self.rows[to] = self.rows[origin]
        size = int(found.places[-1]) + 1 if len(found.places) else 0
        if size > len(self.rows):
            rows = torch.empty((size + size // 4, *self.shape[1:]), dtype=self.dtype)
            rows[: self.used] = self.rows[: self.used]
            self.rows = rows
        answers = receive(found.sent, "rows of other machines")
        for positions, answer in zip(found.positions, answers, strict=True):
            self.rows.index_copy_(0, found.places[positions], answer.data_tensor)


class _Request(NamedTuple):
    """Rows on their way.

    Attributes:
        ids: node IDs of the batch.
        slots: their slots.
        rows: number of different rows.
        remote: number of these from other machines.
        places: positions in ``FeatureCache.rows`` of the requested rows.
        moves: result of ``FeatureCache._evict``.
        sent: see ``rpc.request``.
        positions: see ``rpc.request``.
    """

    ids: Tensor
    slots: Tensor
    rows: int
    remote: int
    places: Tensor
    moves: tuple[Tensor, Tensor]
    sent: dict[int, int]
    positions: list[Tensor]


def _sums(rows: Tensor, indices: Tensor, indptr: Tensor) -> Tensor:
    return F.embedding_bag(indices, rows, indptr, mode="sum", include_last_offset=True)
