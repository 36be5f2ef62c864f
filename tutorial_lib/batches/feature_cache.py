"""Rows of a node's data in one table: own rows in the servers' shared memory, remote rows kept beside them.

    slot 0 .. own-1          rows of this machine's part: the very memory of its DGL server, not a copy
    first .. first+capacity  remote rows that are kept
    then                     remote rows that have just come and for which there was no room

Which rows are kept matters when there is not room for all. What the next batches need is known, because they are drawn
before they are fetched: those rows stay that are needed soonest, and those go that are needed last. No other choice
pulls fewer rows (Belady, IBM Systems Journal 5, 1966), as long as for every row that stays its next use is known.

The three are next to each other in the address space, so that one index reads them all. The kernel hands out memory
when it is first written, so room that is never used costs nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import torch
from dgl.distributed.kvstore import PullRequest
from torch import Tensor

from tutorial_lib.batches.rpc import receive, request

MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 0x1, 0x2, 0x10, 0x20, 0x4000
PROT_READ, PROT_WRITE = 0x1, 0x2
NO_FILE, MAP_FAILED = -1, ctypes.c_void_p(-1).value
ABSENT = -1
NEVER = 2**31 - 1  # a row that none of the batches needs that are drawn


class FeatureCache:
    """Rows of a ``DistTensor`` by node id; reads like the ``DistTensor`` itself: ``table[ids]``.

    For data that nobody writes to: a row that has come once is not asked for again.

    Args:
        tensor: (N, ...) ``DistTensor`` of nodes, features for example.
        book: partition book of the graph.
        budget: bytes for remote rows.
        most_ahead: limit of ``look_ahead``. 0: the rows that come first are kept, for ever.
        scratch: int32 (N,), -1 but while a method uses it; of who needs one, too, in the same thread.

    Attributes:
        shape, dtype: those of the tensor.
        used, asked, hits: remote rows that are kept; that were asked for; that were there.
        look_ahead: number of batches to announce before the rows of the batch before them are requested. It grows
            until the next use of each cached row is known, and stays 0 while there is room for all rows.
    """

    def __init__(
        self,
        tensor: Any,
        book: Any,
        budget: int,
        most_ahead: int = 32,
        scratch: Tensor | None = None,
    ) -> None:
        self.tensor, self.shape, self.dtype, self.book = tensor, tensor.shape, tensor.dtype, book
        own, ids = tensor.local_partition, book.partid2nids(book.partid)
        self.row_bytes = own[:1].numel() * own.element_size() if len(own) else 0
        remote = self.shape[0] - len(own)
        self.capacity = min(remote, budget // self.row_bytes) if self.row_bytes else 0
        self.rows, self.first = _contiguous(own, self.capacity + remote)
        self.slot_of = torch.full((self.shape[0],), ABSENT, dtype=torch.int32)
        self.slot_of[ids] = torch.arange(len(ids), dtype=torch.int32)
        self.used = self.asked = self.hits = 0
        self.look_ahead, self.most_ahead = 0, most_ahead if self.capacity < remote else 0
        self._scratch = torch.full_like(self.slot_of, ABSENT) if scratch is None else scratch
        self._kept = torch.empty(self.capacity, dtype=torch.int64)  # ids, in the order of their slots
        self._passing = torch.empty(0, dtype=torch.int64)  # ids of the rows for which there was no room
        self._used_now = (0, 0)
        # Of each call of ``slots`` that has been announced: ids of the remote rows, and how many rows in all.
        self._coming: deque[tuple[Tensor, int]] = deque()
        self._asked: deque[_Asked] = deque()  # of those after these, in their order

    def announce(self, ids: Tensor) -> None:
        """Announce the ids of a call of ``slots``, after those that have been announced before."""
        self._scratch[ids.long()] = order = torch.arange(len(ids), dtype=torch.int32)
        once = ids[torch.index_select(self._scratch, 0, ids) == order].long()  # each of them, in no order that matters
        self._scratch[once] = ABSENT
        slots = torch.index_select(self.slot_of, 0, once)
        self._coming.append((once[(slots < 0) | (slots >= self.first)], len(once)))

    def cancel(self) -> None:
        """Forget what was announced, an iteration over batches was broken off; rows on their way are waited for."""
        while self._asked:
            self._land(self._asked.popleft())
        self._coming.clear()

    def request(self, ids: Tensor) -> None:
        """Ask for the rows that the first announced call of ``slots`` needs, and do not wait for them.

        What the table says from now on is how it will be when they have come. The rows themselves stay where they are
        until then: the positions that earlier calls got are right until the call after them.
        """
        if not self._coming:
            self.announce(ids)
        to, origin = self._choose()
        remote, rows = self._coming.popleft()
        absent = remote[torch.index_select(self.slot_of, 0, remote) == ABSENT].sort().values
        room, begin = min(len(absent), self.capacity - self.used), self.first + self.used
        places = torch.arange(begin, begin + len(absent))
        places[room:] += self.capacity - self.used - room
        self.slot_of[absent] = places.int()
        slots = torch.index_select(self.slot_of, 0, ids)
        if self.most_ahead:
            self._kept[self.used : self.used + room] = absent[:room]
        self.used += room
        self._passing = absent[room:]
        asked, chosen = {}, []
        if len(absent):
            asked, chosen = request(self.book, absent, lambda some: PullRequest(self.tensor.kvstore_key, some))
        self._asked.append(_Asked(ids, slots, rows, len(remote), absent, places, to, origin, asked, chosen))

    def slots(self, ids: Tensor) -> Tensor:
        """int32 positions in ``rows`` of the nodes ``ids`` (any of them more than once); pulls those that are absent.

        They are valid until the next call, which may overwrite rows for which there was no room.
        """
        if not self._asked:
            self.request(ids)
        found = self._asked.popleft()
        self._land(found)
        same = found.ids is ids or torch.equal(found.ids.long(), ids.long())
        if not same or bool((found.slots == ABSENT).any()):  # another call than this one had been announced
            self.cancel()
            return self.slots(ids)
        pulled = len(found.absent)
        self._used_now = found.rows - pulled, pulled
        self.asked += found.remote
        self.hits += found.remote - pulled
        return found.slots

    def count(self) -> tuple[int, int]:
        """Of the last call of ``slots``: rows that were here, and rows that had to be pulled; each of them once."""
        return self._used_now

    def __getitem__(self, ids: Tensor) -> Tensor:
        return torch.index_select(self.rows, 0, self.slots(ids))

    def _choose(self) -> tuple[Tensor, Tensor]:
        """Of the rows that are kept and those that come with the last batch, keep the ones that are needed soonest.

        Returns:
            Positions in ``rows``: where some of the latter move, and where they come from.
        """
        passing, first = self._passing, self.first
        self._passing = nothing = passing[:0]
        if not (self.capacity and self.most_ahead and self.used == self.capacity):
            self.slot_of[passing] = ABSENT
            return nothing, nothing
        when = torch.full((self.capacity + len(passing),), NEVER, dtype=torch.int32)
        for number, (ids, _) in reversed(list(enumerate(self._coming))):
            slots = torch.index_select(self.slot_of, 0, ids) - first
            when[slots[slots >= 0].long()] = number
        kept, new = when[: self.capacity], when[self.capacity :]
        wanted = int((new < NEVER).sum())
        soonest, incoming = torch.topk(new, min(wanted, self.capacity), largest=False)
        latest, outgoing = torch.topk(kept, len(incoming))
        better = int((soonest < latest).sum())  # both are sorted: the first so many pairs
        incoming, outgoing = incoming[:better], outgoing[:better]
        self.slot_of[self._kept[outgoing]] = ABSENT
        self.slot_of[passing] = ABSENT
        self._kept[outgoing] = passing[incoming]
        self.slot_of[passing[incoming]] = (first + outgoing).int()
        kept[outgoing] = soonest[:better]
        self._look(int(kept.max()))
        return first + outgoing, first + self.capacity + incoming

    def _look(self, last: int) -> None:
        """Set ``look_ahead``, from when the row is needed that will not be needed for the longest time."""
        if last == NEVER and len(self._coming) > self.look_ahead:  # fewer: the iteration comes to its end
            self.look_ahead = min(self.look_ahead + 1, self.most_ahead)
        elif last < len(self._coming) - 2 and self.look_ahead:
            self.look_ahead -= 1

    def _land(self, found: _Asked) -> None:
        """Take in rows that are on their way, when those before them have been read."""
        self.rows[found.to] = self.rows[found.origin]
        answers = receive(found.asked, "rows of other machines") if found.asked else ()
        for positions, answer in zip(found.chosen, answers, strict=True):
            self.rows.index_copy_(0, found.places[positions], answer.data_tensor)


class _Asked(NamedTuple):
    """Rows on their way, for a call of ``slots``.

    Attributes:
        ids, slots: of the call, and what it returns; rows, remote: how many rows, how many of them remote.
        absent, places: int64 ids of those that come, and where they go; to, origin: what moves before.
        asked, chosen: what ``request`` gave.
    """

    ids: Tensor
    slots: Tensor
    rows: int
    remote: int
    absent: Tensor
    places: Tensor
    to: Tensor
    origin: Tensor
    asked: dict[int, int]
    chosen: list[Tensor]


def _contiguous(own: Tensor, more: int) -> tuple[Tensor, int]:
    """A tensor that begins with the rows of ``own``; where ``more`` further rows begin.

    Its beginning is the same memory as ``own`` where that lies in a shared file at the start of a page (DGL's servers
    put it so), and else a copy. The further rows begin after the last page of ``own``.
    """
    mapping = _shared_file_of(own) if len(own) else None
    found = _mapped(own, more, *mapping) if mapping else None
    # Checked on DGL 2.1.0. Where the file has other rows than the tensor, DGL lays them out in another way: copy them.
    if found is not None and all(torch.equal(found[0][k], own[k]) for k in (0, len(own) // 2, len(own) - 1)):
        return found
    rows = torch.empty((len(own) + more, *own.shape[1:]), dtype=own.dtype)
    rows[: len(own)] = own
    return rows, len(own)


def _mapped(own: Tensor, more: int, path: Path, offset: int) -> tuple[Tensor, int]:
    row, page = own[:1].numel() * own.element_size(), mmap.PAGESIZE
    pages = -(-len(own) * row // page) * page
    first = -(-pages // row)
    total = (first + more) * row
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    free = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    address = libc.mmap(None, total, PROT_READ | PROT_WRITE, free, NO_FILE, 0)
    if address == MAP_FAILED:
        raise MemoryError(f"no room for {total} bytes in the address space: {ctypes.get_errno()}")
    buffer = (ctypes.c_char * total).from_address(address)
    # Every view of the tensor holds the buffer. Not at the end of the process, when a thread may still be reading: the
    # kernel does it then.
    weakref.finalize(buffer, libc.munmap, address, total).atexit = False
    with path.open("rb") as file:
        if libc.mmap(address, pages, PROT_READ, MAP_SHARED | MAP_FIXED, file.fileno(), offset) == MAP_FAILED:
            raise OSError(ctypes.get_errno(), f"cannot map {path}")
    return torch.frombuffer(buffer, dtype=own.dtype).view(first + more, *own.shape[1:]), first


def _shared_file_of(tensor: Tensor) -> tuple[Path, int] | None:
    """The file in shared memory, and the place in it, where a tensor begins; None for any other memory."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines() if tensor.is_contiguous() else ():
        span, _rights, offset, _device, inode, *name = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end and name:
            path, place = Path(name[0]), int(offset, 16) + address - begin
            # Another file may have that name by now.
            usable = path.is_file() and path.stat().st_ino == int(inode) and place % mmap.PAGESIZE == 0
            return (path, place) if usable else None
    return None
