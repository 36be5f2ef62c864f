"""Classify nodes by learnable embeddings instead of features (lesson 14). All servers and ranks of a job run this file.

python embeddings.py --graph_name NAME --part_config FILE --ip_config FILE --width 64 --rows_lr 0.03
"""

import functools
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F

from job import split
from node_task import NodeTask, sample_nodes
from predict import accuracy, inference, nodes_of_rank
from row_table import RowAdam, make_table, read_rows, write_rows
from train import main


class EmbeddingTask(NodeTask):
    """Classify nodes with one learnable embedding per node.

    Attributes:
        nodes: the nodes whose rows this rank initializes, writes to the checkpoint, and reads from it.
        table: DistEmbedding (N, width).
        tensors: list of DistTensors, the rows and the state of their optimizer.
    """

    def __init__(self, g, args):
        super().__init__(g, args)
        self.optimizers.append(RowAdam([self.table], lr=args.rows_lr))
        self.tensors = [self.table.weight, *self.optimizers[1]._state[self.table.name]]

    def load_data(self):
        if self.args.cache or self.args.best:
            raise ValueError("--cache and --best do not support embeddings")
        self.ids, self.label = split(self.g), self.g.ndata["label"]
        self.sample = functools.partial(sample_nodes, self.g, self.fanouts)
        self.nodes = nodes_of_rank(self.g)
        self.table = make_table(self.g, self.nodes, self.args.width, self.args.seed)
        self.feat = self.table.weight  # make_model uses its width

    def read(self, sample):
        """Return blocks, embeddings of the input nodes and labels of the seeds, on the device.

        ``self.table(ids)`` reads rows to the CPU and records the read for the optimizer. Move the rows to the device
        afterwards, so that their gradients arrive on the CPU. In every call, dropout with probability ``args.dropout``
        sets **whole** rows to zero and multiplies the others by ``1 / (1 - dropout)``. (Evaluation does not call this
        method.) A sample without seeds must not record a read, because a gradient of zero would also change the rows
        (``torch.set_grad_enabled``). The rest is as in ``NodeTask.read``.
        """
        count, blocks = sample
        with torch.set_grad_enabled(count > 0):
            x = self.table(blocks[0].srcdata[dgl.NID])
        x = x * F.dropout(torch.ones(len(x), 1), self.args.dropout)
        y = self.label[blocks[-1].dstdata[dgl.NID]][:count].long()
        return [block.to(self.device) for block in blocks], x.to(self.device), y.to(self.device)

    def evaluate(self):
        """Return the exact accuracies on the validation and test nodes of all ranks."""
        scores = inference(self.model.module, self.g, self.table.weight, self.device)
        return {f"{name}_{self.score}": accuracy(scores, self.label, self.ids[name]) for name in ("val", "test")}

    def row_file(self, epochs):
        """Return the name of this rank's file with the rows after a number of epochs."""
        return f"{self.args.checkpoint}-{epochs}-rows_{dist.get_rank()}"

    def save(self, epochs):
        """Write the checkpoint after ``len(epochs)`` epochs if the option --checkpoint names a file.

        First write ``self.tensors`` to ``row_file``, and then the checkpoint of the model (``NodeTask.save``), which
        selects the row files by its number of epochs. Finally, delete this rank's file of the previous epoch, if it
        exists. So a complete checkpoint exists at all times.
        """
        if self.args.checkpoint:
            write_rows(self.row_file(len(epochs)), self.tensors, self.nodes)
        super().save(epochs)
        if self.args.checkpoint:
            Path(self.row_file(len(epochs) - 1)).unlink(missing_ok=True)

    def resume(self):
        """Load the checkpoint, if it exists, and return its epochs. The number of epochs selects the row files.

        A missing row file is an error (``FileNotFoundError``), and not a reason to start with other rows.
        """
        epochs = super().resume()
        if epochs:
            read_rows(self.row_file(len(epochs)), self.tensors, self.nodes)
        return epochs


if __name__ == "__main__":
    main(EmbeddingTask, width=64, rows_lr=0.03)
