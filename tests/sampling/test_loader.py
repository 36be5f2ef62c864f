"""Mini-batches of nodes, and rows of a store by node ID."""

from types import SimpleNamespace

import dgl
import torch
from dgl.distributed import DistDataLoader

from tutorial_lib.sampling.loader import Batch, BatchLoader, read_rows, use_openmp_threads


def test_empty_ids_give_empty_rows():
    """D7. DGL fails if it is asked for no rows."""
    rows = read_rows(SimpleNamespace(shape=(9, 3), dtype=torch.uint8), torch.tensor([], dtype=torch.int64))
    assert (rows.shape, rows.dtype) == ((0, 3), torch.uint8)


def loader_of() -> BatchLoader:
    generator = torch.Generator().manual_seed(0)
    graph = dgl.graph(tuple(torch.randint(200, (2, 4000), generator=generator)), num_nodes=200)
    return BatchLoader(graph, torch.arange(90), [4, 3], 20, steps=6, shuffle=True, seed=3, threads=1)


def found(loader: BatchLoader, epoch: int, start: int = 0) -> list[tuple[int, list[int], list[int]]]:
    batches: list[tuple[int, Batch]] = list(loader.batches(epoch, start))
    return [(step, batch.seeds.tolist(), batch.input_nodes.tolist()) for step, batch in batches]


def test_batch_depends_on_seed_epoch_and_step():
    """D8. The batches of an epoch do not depend on the epochs before it or on the global generator."""
    whole = found(loader_of(), 1)
    assert [(step, len(seeds)) for step, seeds, _ in whole] == [(step, 15) for step in range(6)]
    assert sorted(seed for _, seeds, _ in whole for seed in seeds) == list(range(90))
    loader = loader_of()
    assert found(loader, 0) != whole
    dgl.seed(9)
    assert found(loader, 1, start=4) == whole[4:]


def test_batches_of_sampler_processes_are_in_order():
    """They are the batches that the trainer would sample, although they arrive in another order."""

    class Pairwise(DistDataLoader):
        """Delivers each second batch before the first."""

        def _request_next_batch(self) -> None:
            super()._request_next_batch()
            super()._request_next_batch()

        def _get_data_from_result_queue(self, timeout: int = 0) -> tuple[int, Batch]:  # noqa: ARG002
            return self.queue.pop(1 if len(self.queue) > 1 else 0)

    loader = loader_of()
    loader._processes = Pairwise(torch.arange(len(loader)), 1, collate_fn=loader)
    for epoch, start in ((1, 0), (1, 4), (0, 1)):
        with use_openmp_threads(1):  # as DGL sets it in a sampler process
            batches = found(loader, epoch, start)
        assert batches == found(loader_of(), epoch, start)
