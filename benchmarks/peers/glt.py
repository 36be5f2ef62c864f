"""GraphLearn-for-PyTorch (GLT) as a peer: one process on each machine, as in GLT's distributed example.

``--prepare`` writes GLT's partitions with the parts of the other systems. ``--cached`` keeps all rows and edges of the
other machine on each machine, with GLT's feature cache and ``graph_caching``. GLT's sampler runs in the training
process, because one core has no room for a second one.
"""

import os
import sys
import types
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_geometric.nn as pyg
from recording import BATCH_SIZE, CLASSES, DROPOUT, FANOUTS, HIDDEN, WIDTH, Recorder, parse_options, train


class SparseTensor:
    """The only part of torch_sparse that GLT uses: edges sorted by row. torch_sparse has no wheel."""

    def __init__(self, row: torch.Tensor, col: torch.Tensor, value: torch.Tensor, sparse_sizes: tuple) -> None:
        order = torch.argsort(row * sparse_sizes[1] + col)
        counts = torch.bincount(row, minlength=sparse_sizes[0])
        rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        found = {"rowptr": rowptr, "col": col[order], "value": value[order]}
        self.storage = types.SimpleNamespace(**{name: lambda found=tensor: found for name, tensor in found.items()})


sys.modules["torch_sparse"] = types.SimpleNamespace(
    SparseTensor=SparseTensor
)  # after torch_geometric, which looks for it
import graphlearn_torch as glt  # noqa: E402
from graphlearn_torch.partition import base, frequency_partitioner  # noqa: E402

PARTS = 2


class GivenParts(frequency_partitioner.FrequencyPartitioner):
    """Takes the part of each node, and caches the rows of all nodes of the other parts if there is a cache."""

    part_of: torch.Tensor

    def _partition_node(self, ntype=None):  # noqa: ARG002  GLT's signature
        return [(self.part_of == part).nonzero().flatten() for part in range(self.num_parts)], self.part_of


def prepare(folder: Path) -> None:
    """Write GLT's partitions without and with caches."""
    data = torch.load(folder / "graph.pt", weights_only=True)
    counts = data["indptr"].diff()
    edges = torch.stack([torch.repeat_interleave(torch.arange(len(counts)), counts), data["indices"]])
    others = [(data["part"] != part).float() for part in range(PARTS)]
    for name, ratio in (("glt", 0.0), ("glt-cached", others[0].mean().item())):
        parts = GivenParts(
            str(folder / name), PARTS, len(counts), edges, others, node_feat=data["feat"], cache_ratio=ratio
        )
        parts.part_of = data["part"]
        parts.partition()
        if ratio:
            graph = types.SimpleNamespace(edge_index=edges, weights=None)
            base.save_graph_cache(parts.output_dir, [graph])


class GraphSAGE(torch.nn.Module):
    """The model of the other systems with PyG's layers."""

    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH, *[HIDDEN] * (len(FANOUTS) - 1), CLASSES]
        self.layers = torch.nn.ModuleList(pyg.SAGEConv(a, b, aggr="mean") for a, b in pairwise(widths))
        for layer in self.layers:  # as DGL initializes them
            for linear in (layer.lin_l, layer.lin_r):
                torch.nn.init.xavier_uniform_(linear.weight, torch.nn.init.calculate_gain("relu"))

    def forward(self, batch) -> torch.Tensor:
        """Return the logits of the seeds of a batch."""
        x, edges = batch.x, batch.edge_index
        nodes, hops = batch.num_sampled_nodes.tolist(), batch.num_sampled_edges.tolist()
        for depth, layer in enumerate(self.layers):
            targets = sum(nodes[: len(hops) - depth])  # the rows that the next layer needs, as in trim_to_layer
            used = edges[:, : sum(hops[: len(hops) - depth])]
            x = layer((x, x[:targets]), adjacency(used, targets, len(x)))
            if depth < len(self.layers) - 1:
                x = F.dropout(F.relu(x), DROPOUT, self.training)
        return x[: batch.batch_size]

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights under DGL's names."""
        names = {"lin_l.weight": "fc_neigh.weight", "lin_l.bias": "fc_self.bias", "lin_r.weight": "fc_self.weight"}
        return {
            f"layers.{depth}.{new}": dict(layer.named_parameters())[old].detach()
            for depth, layer in enumerate(self.layers)
            for old, new in names.items()
        }


def adjacency(edges: torch.Tensor, targets: int, sources: int) -> torch.Tensor:
    """Return the sampled edges as a CSR matrix, which PyG aggregates faster than a list of edges."""
    counts = torch.bincount(edges[1], minlength=targets)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return torch.sparse_csr_tensor(indptr, edges[0], torch.ones(edges.shape[1]), (targets, sources))


def main() -> None:
    """Train as one rank. RANK, MASTER_ADDR and MASTER_PORT are set."""
    options = parse_options()
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    data = glt.distributed.DistDataset()
    name = "glt-cached" if options.cached else "glt"
    data.load(
        str(options.data / name),
        rank,
        graph_mode="CPU",
        feature_with_gpu=False,
        graph_caching=options.cached,
        whole_node_label_file=str(options.data / "label.pt"),
    )
    nodes = torch.load(options.data / f"train-{rank}.pt", weights_only=True)
    glt.distributed.init_worker_group(PARTS, rank, "peers")
    dist.init_process_group("gloo", rank=rank, world_size=PARTS)
    torch.manual_seed(options.seed)
    model = torch.nn.parallel.DistributedDataParallel(GraphSAGE())
    torch.manual_seed(options.seed * 1000 + rank)
    ports = glt.distributed.CollocatedDistSamplingWorkerOptions(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    )
    loader = glt.distributed.DistNeighborLoader(
        data,
        FANOUTS[::-1],  # GLT begins with the hop next to the seeds
        nodes,
        batch_size=BATCH_SIZE,
        shuffle=True,
        collect_features=True,
        to_device=torch.device("cpu"),
        random_seed=options.seed * 1000 + rank,
        worker_options=ports,
    )

    def loss_of(batch) -> torch.Tensor:
        return F.cross_entropy(model(batch), batch.y[: batch.batch_size])

    train(Recorder(options.out, rank), options.epochs, model, loader, loss_of, model.module.weights)


if __name__ == "__main__":
    if "--prepare" in sys.argv:
        prepare(Path(sys.argv[-1]))
    else:
        main()
