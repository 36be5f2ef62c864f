"""Rows of a store by node ID."""

from __future__ import annotations

import torch

from tutorial_lib.batches.nodes import rows_of


class Store:
    """A DistTensor of (9, 3) that cannot be asked for no rows."""

    shape, dtype = (9, 3), torch.uint8

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        assert len(ids)
        return torch.ones(len(ids), 3, dtype=self.dtype)


def test_no_ids_have_no_rows():
    """D7. DGL fails if it is asked for no rows."""
    rows = rows_of(Store(), torch.empty(0, dtype=torch.int64))
    assert (rows.shape, rows.dtype) == ((0, 3), torch.uint8)
    assert rows_of(Store(), torch.tensor([4])).shape == (1, 3)
