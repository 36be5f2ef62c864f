"""Read rows and compute exact scores for several node types. Used by train_types.py (lesson 15)."""

import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor, node_split


def rows_of(table, ids):
    """Return rows of a DistTensor. This function also accepts empty ``ids``, which a DistTensor rejects."""
    return table[ids] if len(ids) else torch.zeros(0, table.shape[1])


class Rows:
    """A table of rows for each node type, with features or learnable embeddings.

    Attributes:
        learned: DistEmbedding of each type without features.
        tables: DistTensor of each type, with the features or the values of the embeddings.
        counts: number of rows read for training and number of remote rows among them, for each type.
    """

    def __init__(self, g, width):
        self.book, self.learned, self.tables = g.get_partition_book(), {}, {}
        for name in g.ntypes:
            if "feat" in g.nodes[name].data:
                self.tables[name] = g.nodes[name].data["feat"]
            else:  # the policy stores each row on the machine of its node, and rows start as zeros
                policy = g.get_node_partition_policy(name)
                self.learned[name] = DistEmbedding(g.num_nodes(name), width, f"learned-{name}", part_policy=policy)
                self.tables[name] = self.learned[name].weight
        self.counts = {name: torch.zeros(2, dtype=torch.int64) for name in g.ntypes}

    def read(self, input_nodes):
        """Return the rows of a batch by type. A DistEmbedding records reads until the next step of the optimizer."""
        rows = {}
        for name, ids in input_nodes.items():
            learned = name in self.learned and len(ids)
            rows[name] = self.learned[name](ids) if learned else rows_of(self.tables[name], ids)
            remote = self.book.nid2partid(ids, name) != self.book.partid
            self.counts[name] += torch.tensor([len(ids), int(remote.sum())])
        return rows


def make_stores(model, g):
    """Return a DistTensor for the output of each layer and each type that the layer computes."""
    return [
        {
            name: DistTensor(
                (g.num_nodes(name), own.out_features),
                torch.float32,
                name=f"layer-{number}-{name}",
                part_policy=g.get_node_partition_policy(name),
            )
            for name, own in layer.own.items()
        }
        for number, layer in enumerate(model.layers)
    ]


@torch.no_grad()
def inference(model, g, tables, stores, sampler):
    """Return exact scores of all target nodes as a DistTensor. ``sampler`` returns all neighbors of one hop."""
    model.eval()
    for number, store in enumerate(stores):
        for name, out in store.items():  # every rank computes and writes only nodes of its machine
            everyone = torch.ones(g.num_nodes(name), dtype=torch.bool)
            own = node_split(everyone, g.get_partition_book(), ntype=name, force_even=False)
            for nodes in own.split(1000):
                inputs, _, (block,) = sampler.sample_blocks(g, {name: nodes})
                rows = {kind: rows_of(tables[kind], ids) for kind, ids in inputs.items()}
                out[nodes] = model.layer(number, block, rows)[name]
        dist.barrier()  # the next layer reads rows of all machines
        tables = store
    return tables[model.target]
