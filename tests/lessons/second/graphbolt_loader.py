"""A second solution of the holes in ``graphbolt_loader.py``."""

import json

import dgl.graphbolt as gb
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torchdata.datapipes.iter import IterableWrapper

SPLITS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}


def write_dataset(graph, folder):
    def save(file, array, **more):
        np.save(folder / f"{file}.npy", np.ascontiguousarray(array))
        return {"format": "numpy", "path": f"{file}.npy", **more}

    labels, tasks = graph.ndata["label"], {"num_classes": len(torch.bincount(graph.ndata["label"]))}
    for split, mask in SPLITS.items():
        ids = torch.where(graph.ndata[mask])[0]
        first = save(f"{split}-seed_nodes", ids, name="seed_nodes")
        tasks[split + "_set"] = [{"data": [first, save(f"{split}-labels", labels.take(ids), name="labels")]}]
    sources, destinations = graph.edges()
    edges = save("edges", np.array([sources.numpy(), destinations.numpy()]))
    feat = save("feat", graph.ndata["feat"], domain="node", name="feat", in_memory=False)
    graph_part = {"nodes": [{"num": graph.num_nodes()}], "edges": [edges]}
    text = json.dumps({"dataset_name": "mine", "graph": graph_part, "feature_data": [feat], "tasks": [tasks]})
    (folder / "metadata.yaml").write_text(text)  # JSON is YAML


def append_degrees(graph):
    starts = graph.csc_indptr.to(torch.int64)

    def with_degrees(batch):
        feat, nodes = batch.node_features["feat"], batch.input_nodes.to(torch.int64)
        counts = starts.index_select(0, nodes + 1) - starts.index_select(0, nodes)
        batch.node_features = {"feat": torch.column_stack([feat, torch.log1p(counts.to(torch.float32))])}
        return batch

    return with_degrees


def make_source(itemset, rows):
    columns, batches = itemset[:], []
    for part in rows:
        batch = gb.MiniBatch()
        batch.seed_nodes, batch.labels = (column.index_select(0, part) for column in columns)
        batches.append(batch)
    return IterableWrapper(batches)


def rank_pipeline(source, dataset, fanouts, device="cpu", stage=None):
    moved = source.copy_to(device=device, extra_attrs=("seed_nodes",))
    sampled = gb.NeighborSampler(moved, dataset.graph, list(fanouts))
    fetched = gb.FeatureFetcher(sampled, dataset.feature, node_feature_keys=["feat"])
    return gb.MiniBatchTransformer(fetched, stage) if stage else fetched


def train_epoch(model, optimizer, batches, sizes):
    model.train(True)
    losses, nodes, factor = [], 0, dist.get_world_size()
    sizes = iter(sizes)
    for batch in batches:
        optimizer.zero_grad()
        scores = model(batch.blocks, batch.node_features["feat"])
        loss = -F.log_softmax(scores, 1).gather(1, batch.labels[:, None]).sum()
        (loss * (factor / next(sizes))).backward()
        optimizer.step()
        losses.append(float(loss))
        nodes += batch.labels.numel()
    return sum(losses), nodes
