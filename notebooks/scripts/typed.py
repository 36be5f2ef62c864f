"""What a rank does with several types of nodes: reads rows, computes exact scores. For train_types.py (lesson 15)."""

import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor, node_split


def rows_of(table, ids):
    """Rows of a DistTensor, which cannot be asked for no row at all."""
    return table[ids] if len(ids) else torch.zeros(0, table.shape[1])


class Rows:
    """A table of rows for each type: its features, or a row that is learned for each node.

    Attributes:
        learned: by type, a DistEmbedding, for types without features.
        tables: by type, a DistTensor: the features, or the values of the learned rows.
        counts: by type, how many rows were read for training, and how many of them came from other machines.
    """

    def __init__(self, g, width):
        self.book, self.learned, self.tables = g.get_partition_book(), {}, {}
        for name in g.ntypes:
            if "feat" in g.nodes[name].data:
                self.tables[name] = g.nodes[name].data["feat"]
            else:  # rows of zeros at first; the policy says whose they are: a row lies where its node lies
                policy = g.get_node_partition_policy(name)
                self.learned[name] = DistEmbedding(g.num_nodes(name), width, f"learned-{name}", part_policy=policy)
                self.tables[name] = self.learned[name].weight
        self.counts = {name: torch.zeros(2, dtype=torch.int64) for name in g.ntypes}

    def read(self, input_nodes):
        """The rows of a batch, by type. A learned row remembers that it was read, until its optimizer's step."""
        rows = {}
        for name, ids in input_nodes.items():
            learned = name in self.learned and len(ids)
            rows[name] = self.learned[name](ids) if learned else rows_of(self.tables[name], ids)
            remote = self.book.nid2partid(ids, name) != self.book.partid
            self.counts[name] += torch.tensor([len(ids), int(remote.sum())])
        return rows


def make_stores(model, g):
    """For each layer and each type that it computes, a DistTensor for its output."""
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
    """Exact scores of all nodes of the target, a DistTensor. ``sampler`` draws all neighbors of one hop."""
    model.eval()
    for number, store in enumerate(stores):
        for name, out in store.items():  # every rank computes the nodes of its own machine, and writes nowhere else
            everyone = torch.ones(g.num_nodes(name), dtype=torch.bool)
            own = node_split(everyone, g.get_partition_book(), ntype=name, force_even=False)
            for nodes in own.split(1000):
                inputs, _, (block,) = sampler.sample_blocks(g, {name: nodes})
                rows = {kind: rows_of(tables[kind], ids) for kind, ids in inputs.items()}
                out[nodes] = model.layer(number, block, rows)[name]
        dist.barrier()  # the next layer reads rows of all machines
        tables = store
    return tables[model.target]
