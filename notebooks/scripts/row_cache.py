"""A cache for the rows of other machines: ``g.ndata["feat"] = RowCache(g.ndata["feat"], book, capacity)``."""

import torch


class RowCache:
    """Reads like a DistTensor that nobody writes to. A remote row stays when it has come, while there is room."""

    def __init__(self, tensor, book, capacity):
        self.tensor, self.book, self.shape = tensor, book, tensor.shape
        self.rows = torch.empty(capacity, *tensor.shape[1:], dtype=tensor.dtype)
        self.place = torch.full((len(tensor),), -1)  # of a node's row in ``rows``; -1: not there
        self.kept = self.asked = self.found = 0

    def keep(self, ids, rows):
        """Take in as many of these rows as there is room for."""
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
            result[~here] = came = self.tensor[others]  # own rows out of shared memory, the rest over the wire
            remote = self.book.nid2partid(others) != self.book.partid
            self.asked += int(remote.sum())
            self.keep(others[remote], came[remote])
        return result
