"""What stands in for a ``DistTensor`` in the checkers of lessons 1 and 2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Rows:
    """Shape, dtype, rows by id, nothing else. As in a DistTensor, a slice needs both ends and is not cut off.

    Attributes:
        values: what the table holds.
        reads, writes: the ids of each read and of each write.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.clone()
        self.shape, self.dtype = tuple(values.shape), values.dtype
        self.reads: list[list[int]] = []
        self.writes: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, ids: Any) -> Tensor:
        ids = self._ids(ids)
        self.reads.append(ids.tolist())
        return self.values[ids]

    def __setitem__(self, ids: Any, rows: Any) -> None:
        ids = self._ids(ids)
        self.writes.append(ids.tolist())
        self.values[ids] = rows

    def _ids(self, ids: Any) -> Tensor:
        if not isinstance(ids, slice):
            return torch.as_tensor(ids).long().reshape(-1)
        if ids.start is None or ids.stop is None:
            raise TypeError("a DistTensor takes slices with a start and an end")
        return torch.arange(ids.start, ids.stop)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'DistTensor' object has no attribute {name!r}")
