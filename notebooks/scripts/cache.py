"""Cache feature rows of other machines (lesson 10): ``feat = FeatureCache(g.ndata["feat"], book, num_bytes)``."""

import torch

from ranks import weighted_reduce


class FeatureCache:
    """Read rows like a DistTensor, and keep remote rows in the memory of this process until the cache is full.

    Features do not change during training, so a cached row is never fetched again.

    Attributes:
        rows: tensor (capacity, width). The first ``used`` rows are cached rows.
        slots: int64 tensor (N,). ``slots[v]`` is the index of the row of node v in ``rows``, or -1.
        hits, requests: number of remote rows that were found in the cache, and that were requested.
    """

    def __init__(self, tensor, book, num_bytes):
        self.tensor, self.book, self.shape = tensor, book, tensor.shape
        row_bytes = tensor.shape[1] * torch.empty(0, dtype=tensor.dtype).element_size()
        self.capacity = min(num_bytes // row_bytes, len(tensor))
        self.rows = torch.empty(self.capacity, tensor.shape[1], dtype=tensor.dtype)
        self.slots = torch.full((len(tensor),), -1)
        self.used = self.hits = self.requests = 0

    def is_remote(self, ids):
        """Return a boolean tensor, true for the nodes of other parts. ``self.book`` is the partition book."""
        return self.book.nid2partid(ids) != self.book.partid

    def insert(self, ids, rows):
        """Cache the rows of these nodes, or only the first of them that fit. None of the nodes is in the cache."""
        count = min(len(ids), self.capacity - self.used)
        new = torch.arange(self.used, self.used + count)
        self.rows[new] = rows[:count]
        self.slots[ids[:count]] = new
        self.used += count

    def __getitem__(self, ids):
        """Return the rows of the nodes ``ids`` (without duplicates), as ``self.tensor[ids]`` does.

        Read the rows that are not in the cache with one call ``self.tensor[...]``, or none if the cache has all rows,
        because a DistTensor rejects an empty tensor of IDs. Insert the remote rows among those that you have read.
        Update ``hits`` and ``requests``, which do not count rows of this machine.
        """
        cached = self.slots[ids] >= 0
        result = torch.empty(len(ids), self.shape[1], dtype=self.rows.dtype)
        result[cached] = self.rows[self.slots[ids[cached]]]
        self.hits += int(cached.sum())
        self.requests += int(self.is_remote(ids).sum())
        others = ids[~cached]
        if len(others):
            fetched = self.tensor[others]
            result[~cached] = fetched
            remote = self.is_remote(others)
            self.insert(others[remote], fetched[remote])
        return result

    def fill(self, degrees):
        """Fill an empty cache with the remote nodes that have the most neighbors, in one read of ``tensor``.

        Without remote nodes or without room for a row, read nothing. Call this method before the first batch. The read
        counts neither as requests nor as hits. ``degrees`` (N,) has the number of neighbors of each node. Sampling
        requests nodes with many neighbors most often.
        """
        remote = self.is_remote(torch.arange(len(degrees))).nonzero().flatten()
        order = degrees[remote].argsort(descending=True)
        hot = remote[order[: self.capacity]]
        if len(hot):
            self.insert(hot, self.tensor[hot])

    def hit_rate(self):
        """Return the share of hits among the requests of all ranks, a float, on every rank."""
        return weighted_reduce(self.hits, self.requests)
