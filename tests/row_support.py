"""Rows and a partition book as the pipeline sees them, without servers."""

from __future__ import annotations

from pathlib import Path

import torch


class Rows:
    """A ``DistTensor`` of which this machine holds the rows ``begin`` to ``end - 1``."""

    def __init__(self, rows: torch.Tensor, begin: int, end: int, *, shared: Path | None = None) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.local_partition = rows[begin:end].clone()
        if shared is not None:
            shared.write_bytes(self.local_partition.numpy().tobytes())
            mapped = torch.from_file(str(shared), shared=True, size=self.local_partition.numel(), dtype=rows.dtype)
            self.local_partition = mapped.view_as(self.local_partition)
        self.asked: list[list[int]] = []

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        self.asked.append(sorted(ids.tolist()))
        return self.rows[ids]


class Book:
    partid = 0

    def __init__(self, begin: int, end: int) -> None:
        self.ids = torch.arange(begin, end)

    def partid2nids(self, _part: int) -> torch.Tensor:
        return self.ids
