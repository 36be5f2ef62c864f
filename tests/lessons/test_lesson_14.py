"""Lesson 14: embeddings.py has the results of one process, however it is started."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import run_program

from tutorial_lib.data import Dataset
from tutorial_lib.partition import Partition, partition_dataset


@pytest.fixture(scope="module")
def part_of(small_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Partition]:
    """``part_of(k)``: the small data set in k parts, with original IDs instead of features."""
    graph = small_dataset.graph.clone()
    del graph.ndata["feat"]
    graph.ndata["original"] = graph.nodes()
    dataset = dataclasses.replace(small_dataset, structure=graph)
    folder = tmp_path_factory.mktemp("parts")
    return lambda parts: partition_dataset(dataset, parts, folder / str(parts))


EXACT = "--width 16 --hidden 16 --fanouts=-1,-1 --dropout 0"


@pytest.mark.cluster
def test_embeddings_of_ranks_equal_one_process(scripts, emulation, nothing_left, part_of):
    """One process, torchrun without servers, and two machines with two trainers each have equal losses and scores."""
    more = f"{EXACT} --batch_size 1000 --num_epochs 3"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    results = [run_program(scripts, "embeddings.py", part_of(1), more, start=start) for start in ((), torchrun)]
    results += [run_program(scripts, "embeddings.py", part_of(2), more, "--num_trainers", "2")]
    assert [result["ranks"] for result in results] == [1, 2, 4]
    for name in ("loss", "val_accuracy", "test_accuracy"):
        values = [[epoch[name] for epoch in result["epochs"]] for result in results]
        torch.testing.assert_close(values[1:], values[:1] * 2, atol=2e-3, rtol=0)
    with pytest.raises(AssertionError, match="ValueError: --cache and --best do not support embeddings"):
        run_program(scripts, "embeddings.py", part_of(1), "--cache 1000")


SHARES = """
import json
from pathlib import Path

import torch.distributed as dist

import embeddings
from train import main


class SavesShares(embeddings.EmbeddingTask):
    def load_data(self):
        super().load_data()
        Path(f"share-{dist.get_rank()}.json").write_text(json.dumps(self.ids["train"].tolist()))


if __name__ == "__main__":
    main(SavesShares, width=64, rows_lr=0.03)
"""


def in_steps(scripts: Path, graph: Any, shares: list[torch.Tensor], size: int, epochs: int) -> list[float]:
    """Return the losses of embeddings.py on the plain graph. A row makes a step of Adam if a batch has read it."""
    sys.path.insert(0, str(scripts))
    from row_table import first_rows
    from sage import GraphSAGE

    labels, sampler = graph.ndata["label"].long(), dgl.dataloading.MultiLayerFullNeighborSampler(2)
    known = graph.ndata["train_mask"].bool() | graph.ndata["val_mask"].bool()
    torch.manual_seed(0)
    model = GraphSAGE(16, 16, int(labels[known].max()) + 1, dropout=0)
    optimizer, rows = torch.optim.Adam(model.parameters(), lr=0.01), first_rows(graph.nodes(), 16, 0)
    count, mean, power, found = torch.zeros(len(rows), 1), torch.zeros_like(rows), torch.zeros_like(rows), []
    for epoch in range(epochs):
        total = 0.0
        steps = max(-(-len(share) // size) for share in shares)
        orders = [share[torch.randperm(len(share), generator=torch.Generator().manual_seed(epoch))] for share in shares]
        for parts in zip(*(order.tensor_split(steps) for order in orders), strict=True):
            ids, _, blocks = sampler.sample_blocks(graph, seeds := torch.cat(parts))
            x = rows[ids].requires_grad_()
            loss = F.cross_entropy(model(blocks, x), labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count[ids] += 1
            mean[ids] = 0.9 * mean[ids] + 0.1 * x.grad
            power[ids] = 0.999 * power[ids] + 0.001 * x.grad**2
            corrected = mean[ids] / (1 - 0.9 ** count[ids]), power[ids] / (1 - 0.999 ** count[ids])
            rows[ids] -= 0.03 * corrected[0] / (corrected[1].sqrt() + 1e-8)
            total += loss.item() * len(seeds)
        found.append(total / sum(len(share) for share in shares))
    return found


@pytest.mark.cluster
def test_rows_have_the_gradients_of_one_process(scripts, emulation, nothing_left, part_of, small_dataset):
    """The ranks that read a row change from step to step. DGL's SparseAdam would use other gradients."""
    (scripts / "shares.py").write_text(SHARES)
    part, folder = part_of(2), scripts.parent
    result = run_program(scripts, "shares.py", part, f"{EXACT} --batch_size 49 --num_epochs 2", "--num_trainers", "1")
    found = [epoch["loss"] for epoch in result["epochs"]]
    original = torch.from_numpy(np.load(part.folder / "node_map.npy"))
    shares = [original[json.loads((folder / f"share-{rank}.json").read_text())] for rank in range(2)]
    expected = in_steps(scripts, small_dataset.graph, shares, 49, 2)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
