"""Classification of the nodes of one type in a graph with several types of nodes and edges, with R-GCN."""

from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.models.rgcn import RGCN, types_by_depth
from tutorial_lib.sampling.nodes import Batch, rows_of
from tutorial_lib.tasks.embedding import learnable_embeddings
from tutorial_lib.tasks.node import NodeTask


class HeteroTask(NodeTask):
    """Classify nodes by the features of some types and by learnable embeddings of the others."""

    name = "hetero"
    typed = True
    on_gpu = False

    def get_features(self) -> dict[str, Any]:
        graph = self.shard.graph
        types = types_by_depth(graph.canonical_etypes, self.shard.target, len(self.config.fanouts))[0]
        features = {ntype: graph.nodes[ntype].data["feat"] for ntype in types if "feat" in graph.nodes[ntype].data}
        others = [ntype for ntype in types if ntype not in features]
        self.embeddings, self.sparse_optimizers = learnable_embeddings(self.shard, others, self.config)
        return features | {ntype: embedding.weight for ntype, embedding in self.embeddings.items()}

    def make_model(self) -> nn.Module:
        config, shard = self.config, self.shard
        widths = {ntype: rows.shape[1] for ntype, rows in self.features.items() if ntype not in self.embeddings}
        sizes = (config.embedding_size, config.hidden_size, shard.num_classes, len(config.fanouts), config.dropout)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return RGCN(shard.graph.canonical_etypes, shard.target, widths, *sizes)

    def inputs(self, batch: Batch) -> tuple[list[Any], dict[str, Tensor], Tensor]:
        rows = {}
        for ntype, store in self.features.items():
            ids = batch.input_nodes[ntype]
            learnable = ntype in self.embeddings and len(ids)
            rows[ntype] = self.embeddings[ntype](ids) if learnable else rows_of(store, ids)
        return batch.blocks, rows, self.labels[batch.seeds[self.shard.target]].long()


TASK = HeteroTask
