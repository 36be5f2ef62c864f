"""Data, sampler and loader of DGL's multi-GPU tutorial, adapted to DGL 2.1.0."""

import pickle
import warnings
from pathlib import Path

import dgl

OUT = Path(__file__).with_name("out")  # contains data.pkl

warnings.filterwarnings("ignore", message="Dataloader CPU affinity")  # every loader prints this advice


def load_data():
    """Return graph, scaled features, labels and the IDs of the three splits. The scaling uses OpenMP."""
    graph, features, *others = pickle.loads((OUT / "data.pkl").read_bytes())
    return graph, (features - features.mean(0)) / features.std(0), *others


class FrontierSampler(dgl.dataloading.BlockSampler):
    """Sampler that calls sample_frontier to choose the edges of each layer."""

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
