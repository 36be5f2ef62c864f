"""Classify the nodes of one type with R-GCN (lesson 15). All servers and ranks of a job run this file.

python hetero.py --graph_name NAME --part_config FILE --ip_config FILE --target paper
"""

import functools
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding

from cache import FeatureCache
from job import split
from node_task import NodeTask
from predict import accuracy
from rgcn import RGCN, types_of_layers
from row_table import RowAdam, read_rows, write_rows
from train import main
from typed import infer_types, make_tables, nodes_of_type, read_types, sample_types


class BookOfType:
    """The partition book for nodes of one type. ``FeatureCache`` of lesson 10 passes no type to its book."""

    def __init__(self, book, ntype):
        self.book, self.ntype, self.partid = book, ntype, book.partid

    def nid2partid(self, ids):
        return self.book.nid2partid(ids, self.ntype)


class TypedTask(NodeTask):
    """Classify the nodes of type ``args.target``. Types without features have learnable embeddings.

    Attributes:
        omit: set of the types that are left out.
        tables: dict from type to table, see ``make_tables``.
        inputs: the tables that training reads, which are ``tables`` or a cache of one of them.
        tensors: dict from type to a list of DistTensors, the embeddings and the state of their optimizer.
    """

    def __init__(self, g, args):
        super().__init__(g, args)
        self.tensors = {}
        for ntype, table in self.tables.items():
            if isinstance(table, DistEmbedding):
                self.optimizers.append(RowAdam([table], lr=args.rows_lr))
                self.tensors[ntype] = [table.weight, *self.optimizers[-1]._state[table.name]]

    def load_data(self):
        g, args = self.g, self.args
        if args.best:
            raise ValueError("--best does not support embeddings, which every step changes")
        self.omit = {*args.omit.split(",")}
        self.relations = [relation for relation in g.canonical_etypes if relation[0] not in self.omit]
        types = types_of_layers(self.relations, args.target, len(self.fanouts))
        self.tables, self.label = make_tables(g, types[0], args.hidden), g.nodes[args.target].data["label"]
        self.inputs, self.ids = dict(self.tables), split(g, args.target)
        if args.cache:
            book = BookOfType(g.get_partition_book(), args.target)
            self.inputs[args.target] = FeatureCache(self.tables[args.target], book, args.cache)
        self.sample = functools.partial(sample_types, g, self.fanouts, self.omit, args.target)

    def make_model(self):
        known = torch.cat([self.ids["train"], self.ids["val"]])
        classes = self.label[known].max().long() + 1
        dist.all_reduce(classes, dist.ReduceOp.MAX)
        widths = {name: table.shape[1] for name, table in self.tables.items() if not isinstance(table, DistEmbedding)}
        sizes = self.args.hidden, int(classes), len(self.fanouts), self.args.dropout
        return RGCN(self.relations, self.args.target, widths, *sizes)

    def read(self, sample):
        """Return blocks, rows of the input nodes by type, and labels of a result of ``sample_types``, on the device.

        ``read_types`` reads ``self.inputs``. Without seeds, record no read of an embedding, because a gradient of zero
        also changes rows (``torch.set_grad_enabled``). Return the rows of ``self.label`` for the first ``count``
        destination nodes of type ``self.args.target`` as int64. Moving a block also moves its IDs, so read first.
        """
        count, blocks = sample
        with torch.set_grad_enabled(count > 0):
            x = read_types(self.inputs, blocks[0])
        x = {ntype: rows.to(self.device) for ntype, rows in x.items()}
        y = self.label[blocks[-1].dstnodes[self.args.target].data[dgl.NID]][:count].long()
        return [block.to(self.device) for block in blocks], x, y.to(self.device)

    def evaluate(self):
        """Return a dict with the exact "val_accuracy" and "test_accuracy" of ``self.ids`` over all ranks.

        ``accuracy(scores, labels, ids)`` counts on all ranks. ``infer_types`` computes the scores from ``self.tables``,
        so that its reads do not count as requests of a cache. If ``args.cache`` is not 0, the dict also has the
        "hit_rate", ``self.inputs[args.target].hit_rate()``.
        """
        scores = infer_types(self.model.module, self.g, self.tables, self.omit, self.device)
        found = {f"{name}_{self.score}": accuracy(scores, self.label, self.ids[name]) for name in ("val", "test")}
        return {**found, "hit_rate": self.inputs[self.args.target].hit_rate()} if self.args.cache else found

    def row_file(self, epochs, ntype):
        """Return the name of this rank's file with the rows of a type after a number of epochs."""
        return f"{self.args.checkpoint}-{epochs}-{ntype}_{dist.get_rank()}"

    def save(self, epochs):
        """Write the rows of each type, then the checkpoint that selects these files, and delete the previous files."""
        names = list(self.tensors) if self.args.checkpoint else []
        for ntype in names:
            write_rows(self.row_file(len(epochs), ntype), self.tensors[ntype], nodes_of_type(self.g, ntype))
        super().save(epochs)
        for ntype in names:
            Path(self.row_file(len(epochs) - 1, ntype)).unlink(missing_ok=True)

    def resume(self):
        """Load the checkpoint, if it exists, and the rows of its number of epochs. Return its epochs."""
        epochs = super().resume()
        for ntype in self.tensors if epochs else ():
            read_rows(self.row_file(len(epochs), ntype), self.tensors[ntype], nodes_of_type(self.g, ntype))
        return epochs


OPTIONS = {"target": "paper", "omit": "", "rows_lr": 0.03}  # omit: node types, separated by commas, to leave out

if __name__ == "__main__":
    main(TypedTask, **OPTIONS)
