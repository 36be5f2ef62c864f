"""A cache of remote feature rows that evicts the row whose next use is furthest away.

Batches are sampled before their rows are pulled, so the next uses of a row are known. A full cache keeps the rows
that are needed soonest (Belady, IBM Systems Journal 5, 1966). If all batches are announced, no rule pulls fewer rows.

Each batch goes through ``announce``, ``request`` (two at a time) and ``receive_rows``. A slot is a row's position:

    0 to num_local_rows - 1           rows of this machine's part, in the memory that its servers share
    the following ``capacity`` slots  cached rows of other machines
    all further slots                 rows of the current batch that did not fit into the cache
"""

import math
from collections import deque
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from dgl.distributed import DistTensor, GraphPartitionBook
from dgl.distributed.kvstore import PullRequest
from torch import Tensor

from tutorial_lib.sampling.neighbors import receive_responses, send_requests

ABSENT = -1
NEVER = 2**31 - 1  # next use of a row that no announced batch needs
LOOK_AHEAD = 8  # batches. Measured needs are 0 to 21 (benchmarks/RESULTS.md). With 16, small batches pull 4 % fewer


class Request(NamedTuple):
    slots: Tensor  # int32 slot of each announced ID
    num_rows: int  # distinct rows of the batch
    num_remote: int  # distinct rows that other machines store
    num_fetched: int  # remote rows that are not in the cache
    positions: Tensor  # int64 positions of the fetched rows in ``FeatureCache.rows``
    moves: tuple[Tensor, Tensor]  # new and old positions of rows of the previous batch that move into the cache
    sent: dict[int, Tensor]  # see ``send_requests``


class FeatureCache:
    """Reads rows of a ``DistTensor`` by node ID, in batches. The rows must not change.

    Args:
        store: ``DistTensor`` of shape (N, ...), for example the node features.
        book: partition book of the graph.
        budget: bytes for cached rows of other machines.
        scratch: int32 tensor of shape (N,), filled with -1 between calls. Callers in the same thread may share it.
    """

    def __init__(self, store: DistTensor, book: GraphPartitionBook, budget: int, scratch: Tensor | None = None) -> None:
        self.store, self.book = store, book
        self.shape, self.dtype = store.shape, store.dtype
        self.local_rows = store.local_partition
        self.num_local_rows = len(self.local_rows)
        self.num_remote_rows = self.shape[0] - self.num_local_rows
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self.capacity = min(self.num_remote_rows, budget // max(1, self.row_bytes))
        self.rows = torch.empty((self.capacity, *self.shape[1:]), dtype=self.dtype)  # rows of other machines
        self.slot_of = torch.full((self.shape[0],), ABSENT, dtype=torch.int32)
        self.slot_of[book.partid2nids(book.partid)] = torch.arange(self.num_local_rows, dtype=torch.int32)
        self.used = 0  # cached rows
        self.num_requested = self.hits = 0  # remote rows that all batches needed, and those that were in the cache
        self.last_batch_counts = 0, 0  # distinct rows of the last batch that were on this machine and that were pulled
        self._scratch = torch.full_like(self.slot_of, ABSENT) if scratch is None else scratch
        self._cached = torch.empty(self.capacity, dtype=torch.int64)  # node ID of each cached row
        self._uncached = torch.empty(0, dtype=torch.int64)  # IDs of the last batch's rows that did not fit
        self._announced = deque[tuple[Tensor, Tensor, int]]()  # remote IDs, all IDs, number of distinct rows
        self._requests = deque[Request]()  # in the order of the batches, before the announced ones

    @property
    def look_ahead(self) -> int:
        """The number of later batches that must be announced before the rows of a batch are requested."""
        return LOOK_AHEAD if 0 < self.used == self.capacity < self.num_remote_rows else 0

    def announce(self, ids: Tensor) -> None:
        """Register the node IDs of the next batch. An ID may occur more than once."""
        self._scratch[ids.long()] = order = torch.arange(len(ids), dtype=torch.int32)
        unique_ids = ids[torch.index_select(self._scratch, 0, ids) == order].long()  # one of several equal IDs
        self._scratch[unique_ids] = ABSENT
        slots = torch.index_select(self.slot_of, 0, unique_ids)
        is_remote = (slots < 0) | (slots >= self.num_local_rows)
        self._announced.append((unique_ids[is_remote], ids, len(unique_ids)))

    def request(self) -> None:
        """Request the missing rows of the first announced batch. No row moves until the next ``receive_rows``."""
        moves = self._evict()
        remote, ids, num_rows = self._announced.popleft()
        absent = remote[torch.index_select(self.slot_of, 0, remote) == ABSENT].sort().values
        num_fitting = min(len(absent), self.capacity - self.used)
        positions = torch.arange(self.used, self.used + len(absent))
        positions[num_fitting:] += self.capacity - self.used - num_fitting  # the other rows are behind the cache
        self.slot_of[absent] = (self.num_local_rows + positions).int()
        self._cached[self.used : self.used + num_fitting] = absent[:num_fitting]
        self.used += num_fitting
        self._uncached = absent[num_fitting:]
        slots = torch.index_select(self.slot_of, 0, ids)
        key = self.store.kvstore_key
        sent = send_requests(self.book, absent, lambda part_ids: PullRequest(key, part_ids)) if len(absent) else {}
        self._requests.append(Request(slots, num_rows, len(remote), len(absent), positions, moves, sent))

    def receive_rows(self) -> Tensor:
        """Wait for the rows of the first requested batch and return their int32 slots, valid until the next call."""
        request = self._requests.popleft()
        new_positions, old_positions = request.moves
        self.rows[new_positions] = self.rows[old_positions]  # the rows of the batch before this one have been read
        size = int(request.positions[-1]) + 1 if request.num_fetched else 0
        if size > len(self.rows):
            extra_rows = self.rows.new_empty(size + size // 4 - self.used, *self.shape[1:])
            self.rows = torch.cat([self.rows[: self.used], extra_rows])
        for part_positions, response in receive_responses(request.sent, "rows of other machines"):
            self.rows.index_copy_(0, request.positions[part_positions], response.data_tensor)
        self.last_batch_counts = request.num_rows - request.num_fetched, request.num_fetched
        self.num_requested += request.num_remote
        self.hits += request.num_remote - request.num_fetched
        return request.slots

    def read(self, slots: Tensor) -> Tensor:
        """Return a copy of the rows in the given slots."""
        remote = (slots >= self.num_local_rows).nonzero().flatten()
        if len(remote) == len(slots):
            return torch.index_select(self.rows, 0, slots - self.num_local_rows)
        rows = torch.index_select(self.local_rows, 0, slots.clamp(max=self.num_local_rows - 1))
        rows[remote] = torch.index_select(self.rows, 0, slots[remote] - self.num_local_rows)
        return rows

    @torch.no_grad()
    def mean(self, slots: Tensor, indptr: Tensor) -> Tensor:
        """Return the mean row of each of D lists of slots as a tensor (D, F), zeros for an empty list. Copy no rows."""
        remote = slots >= self.num_local_rows
        remote_before = F.pad(torch.cumsum(remote, 0, dtype=torch.int32), (1, 0))[indptr.long()]
        sums = partial(F.embedding_bag, mode="sum", include_last_offset=True)
        total = sums(slots[~remote], self.local_rows, indptr - remote_before)
        lists = remote_before.diff().nonzero().flatten()  # with rows of other machines, a small part
        pointer = F.pad(remote_before[1:][lists], (1, 0))
        total.index_add_(0, lists, sums(slots[remote] - self.num_local_rows, self.rows, pointer))
        return total.div_(indptr.diff().clamp(min=1).unsqueeze(1))

    def cancel(self) -> None:
        """Discard the announced batches, and wait for the requested rows."""
        while self._requests:
            self.receive_rows()
        self._announced.clear()

    def _evict(self) -> tuple[Tensor, Tensor]:
        """Replace cached rows by rows of the last batch that are needed sooner. Return their new and old positions."""
        uncached = self._uncached
        if not self.look_ahead:
            self.slot_of[uncached] = ABSENT
            return uncached[:0], uncached[:0]
        next_use = torch.full((self.capacity + len(uncached),), NEVER, dtype=torch.int32)
        for number, (ids, *_) in reversed(list(enumerate(self._announced))):
            positions = torch.index_select(self.slot_of, 0, ids) - self.num_local_rows
            next_use[positions[positions >= 0].long()] = number
        cached, new = next_use[: self.capacity], next_use[self.capacity :]
        num_candidates = min(int((new < NEVER).sum()), self.capacity)
        soonest, incoming = torch.topk(new, num_candidates, largest=False)
        latest, outgoing = torch.topk(cached, num_candidates)
        num_swaps = int((soonest < latest).sum())  # both are sorted, so these are the first pairs
        incoming, outgoing = incoming[:num_swaps], outgoing[:num_swaps]
        self.slot_of[torch.cat([self._cached[outgoing], uncached])] = ABSENT
        self._cached[outgoing] = uncached[incoming]
        self.slot_of[uncached[incoming]] = (self.num_local_rows + outgoing).int()
        return outgoing, self.capacity + incoming
