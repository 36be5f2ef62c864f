"""A second solution of cache.py, written from its docstrings and public tests."""

import torch

from ranks import weighted_reduce


class FeatureCache:
    def insert(self, ids, rows):
        ids = ids[: self.capacity - self.used]
        end = self.used + len(ids)
        self.rows[self.used : end] = rows[: len(ids)]
        self.slots[ids] = torch.arange(self.used, end)
        self.used = end

    def __getitem__(self, ids):
        slots, remote = self.slots[ids], self.is_remote(ids)
        known = slots >= 0
        result = self.rows.new_empty(len(ids), self.shape[1])
        result[known] = self.rows[slots[known]]
        self.hits += int(known.sum())
        self.requests += int(remote.sum())
        if not known.all():
            others = ids[~known]
            result[~known] = fetched = self.tensor[others]
            new = remote[~known]
            self.insert(others[new], fetched[new])
        return result

    def fill(self, degrees):
        candidates = torch.arange(len(degrees))
        candidates = candidates[self.is_remote(candidates)]
        best = candidates[degrees[candidates].argsort(descending=True)][: self.capacity]
        if len(best):
            self.insert(best, self.tensor[best])

    def hit_rate(self):
        return weighted_reduce(self.hits, self.requests)
