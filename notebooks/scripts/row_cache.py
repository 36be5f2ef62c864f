"""Cache the rows of other machines, with ``g.ndata["feat"] = RowCache(g.ndata["feat"], book, capacity)``."""

import torch


class RowCache:
    """Replaces a DistTensor that is only read. The cache keeps the first remote rows that are fetched, until full."""

    def __init__(self, tensor, book, capacity):
        self.tensor, self.book, self.shape = tensor, book, tensor.shape
        self.rows = torch.empty(capacity, *tensor.shape[1:], dtype=tensor.dtype)
        self.place = torch.full((len(tensor),), -1)  # index of each node in ``rows``, -1 if not cached
        self.kept = self.asked = self.found = 0

    def keep(self, ids, rows):
        """Add these rows to the cache until the cache is full."""
        room = min(len(ids), len(self.rows) - self.kept)
        new = torch.arange(self.kept, self.kept + room)
        self.rows[new], self.place[ids[:room]] = rows[:room], new
        self.kept += room

    def __getitem__(self, ids):
        here = self.place[ids] >= 0
        result = torch.empty(len(ids), *self.shape[1:], dtype=self.rows.dtype)
        result[here] = self.rows[self.place[ids[here]]]
        others = ids[~here]
        self.found += int(here.sum())
        self.asked += int(here.sum())
        if len(others):
            result[~here] = came = self.tensor[others]  # local rows from shared memory, others over the network
            remote = self.book.nid2partid(others) != self.book.partid
            self.asked += int(remote.sum())
            self.keep(others[remote], came[remote])
        return result
