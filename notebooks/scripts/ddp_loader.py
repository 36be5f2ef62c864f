"""The tutorial's data, sampler and loader, in the form that DGL 2.1.0 takes."""

import pickle
import warnings
from pathlib import Path

import dgl

OUT = Path(__file__).with_name("out")  # holds data.pkl

warnings.filterwarnings("ignore", message="Dataloader CPU affinity")  # advice from each loader


def load_data():
    """Graph, features, labels, and the ids of the three splits. Features are scaled, which uses OpenMP."""
    graph, features, *others = pickle.loads((OUT / "data.pkl").read_bytes())
    return graph, (features - features.mean(0)) / features.std(0), *others


class FrontierSampler(dgl.dataloading.BlockSampler):
    """For each layer, sample_frontier says which edges take part."""

    def __init__(self, fanouts):
        super().__init__()
        self.fanouts = fanouts

    def sample_frontier(self, layer, graph, seeds):
        return dgl.sampling.sample_neighbors(graph, seeds, self.fanouts[layer])

    def sample_blocks(self, graph, seeds, exclude_eids=None):  # noqa: ARG002
        nodes, blocks = seeds, []
        for layer in reversed(range(len(self.fanouts))):
            block = dgl.to_block(self.sample_frontier(layer, graph, nodes), nodes)
            nodes = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        return nodes, seeds, blocks


def create_dataloader(rank, world_size, graph, nids, batch_size):
    size = len(nids) // world_size
    nids = nids[rank * size : (rank + 1) * size]
    return dgl.dataloading.DataLoader(graph, nids, FrontierSampler([4, 4, 4]), batch_size=batch_size, shuffle=True)
