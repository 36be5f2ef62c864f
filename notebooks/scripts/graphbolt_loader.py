"""A data set and mini-batches of GraphBolt for the ranks of one machine (lesson 08)."""

from contextlib import redirect_stdout

import dgl.graphbolt as gb
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml
from torchdata.datapipes.iter import IterableWrapper

SPLITS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}


def write_dataset(graph, folder):
    """Write a data set that ``gb.OnDiskDataset`` can open.

    Save ``edges.npy`` (2, E, sources and destinations), ``feat.npy`` (N, width), and for each name in ``SPLITS`` the
    IDs and the labels of its nodes (int64), such as ``train-seed_nodes.npy`` and ``train-labels.npy``. Write
    ``metadata.yaml`` with the keys that the lesson prints in the section "A data set on disk". Its paths are relative
    to the folder, and the number of classes is the largest label plus one. ``yaml.safe_dump`` returns the text of a
    dictionary.

    Args:
        graph: DGLGraph with the node data feat, label, train_mask, val_mask and test_mask (bool).
        folder: ``Path`` of an existing folder.
    """
    np.save(folder / "edges.npy", torch.stack(graph.edges()).numpy())
    np.save(folder / "feat.npy", graph.ndata["feat"].numpy())
    task = {"name": "node_classification", "num_classes": int(graph.ndata["label"].max()) + 1}
    for split, mask in SPLITS.items():
        ids = graph.ndata[mask].nonzero().flatten()
        columns = []
        for name, values in (("seed_nodes", ids), ("labels", graph.ndata["label"][ids])):
            np.save(folder / f"{split}-{name}.npy", values.numpy())
            columns.append({"name": name, "format": "numpy", "path": f"{split}-{name}.npy"})
        task[f"{split}_set"] = [{"data": columns}]
    edges = {"format": "numpy", "path": "edges.npy"}
    feature = {"domain": "node", "name": "feat", "format": "numpy", "path": "feat.npy", "in_memory": False}
    structure = {"nodes": [{"num": graph.num_nodes()}], "edges": [edges]}
    metadata = {"dataset_name": folder.name, "graph": structure, "feature_data": [feature], "tasks": [task]}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata))


def open_dataset(folder, device="cpu"):
    """Open a preprocessed data set. For a GPU, pin the graph and the features in main memory."""
    with redirect_stdout(None):  # otherwise each rank prints "The dataset is already preprocessed."
        dataset = gb.OnDiskDataset(str(folder), force_preprocess=False).load()
    if torch.device(device).type == "cuda":
        dataset.graph.pin_memory_()
        dataset.feature.pin_memory_()
    return dataset


def append_degrees(graph):
    """Return a custom stage, which is a function that receives a MiniBatch, changes it and returns it.

    The stage appends one float32 column to ``batch.node_features["feat"]``, the logarithm of 1 + number of incoming
    edges **in the whole graph**. Row i of the features belongs to node ``batch.input_nodes[i]`` (int32). The edges into
    node v have the positions ``graph.csc_indptr[v]`` to ``graph.csc_indptr[v + 1]``, without the last one.
    """
    degrees = graph.csc_indptr.diff()

    def stage(batch):
        column = torch.log(1 + degrees[batch.input_nodes.long()].float())
        batch.node_features["feat"] = torch.cat([batch.node_features["feat"], column.unsqueeze(1)], dim=1)
        return batch

    return stage


def make_source(itemset, rows):
    """Return a datapipe that yields one ``gb.MiniBatch`` for each tensor in ``rows``, also for an empty tensor.

    ``itemset[:]`` returns the IDs and the labels of all items, and ``rows`` contains positions in them. Each MiniBatch
    has ``seed_nodes`` and ``labels``. ``IterableWrapper`` turns a list into a datapipe.
    """
    ids, labels = itemset[:]
    return IterableWrapper([gb.MiniBatch(seed_nodes=ids[part], labels=labels[part]) for part in rows])


def rank_pipeline(source, dataset, fanouts, device="cpu", stage=None):
    """Return the pipeline of one rank, in which each stage changes the mini-batches of the previous stage.

    The stages are ``copy_to``, ``sample_neighbor``, ``fetch_feature`` for the feature "feat", and ``transform`` with
    ``stage`` if it is not None. ``copy_to`` moves the seed nodes only if the list ``extra_attrs`` contains their name.

    Args:
        source: datapipe of mini-batches with seed nodes and labels, such as ``gb.ItemSampler`` or ``make_source``.
        fanouts: one number per hop, outermost hop first.
    """
    datapipe = source.copy_to(device, extra_attrs=["seed_nodes"])
    datapipe = datapipe.sample_neighbor(dataset.graph, fanouts)
    datapipe = datapipe.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    if stage is not None:
        datapipe = datapipe.transform(stage)
    return datapipe


def train_epoch(model, optimizer, batches, sizes):
    """Train one epoch and return the sum of the cross-entropy over this rank's seed nodes, and their number.

    As in lesson 06, the model is in training mode, each step uses the gradient of the mean loss over the seed nodes of
    **all** ranks, and a rank without seed nodes makes the step, too. The model computes the scores from
    ``batch.blocks`` and ``batch.node_features["feat"]``. ``batch.blocks`` creates new blocks at each access, so read it
    once.

    Args:
        model: GraphSAGE in DistributedDataParallel.
        batches: iterable of mini-batches, one for each step.
        sizes: number of seed nodes of all ranks together, for each step.
    """
    model.train()
    total = count = 0
    for batch, size in zip(batches, sizes):
        scores = model(batch.blocks, batch.node_features["feat"])
        loss = F.cross_entropy(scores, batch.labels, reduction="sum")
        optimizer.zero_grad()
        (loss * dist.get_world_size() / size).backward()
        optimizer.step()
        total += loss.item()
        count += len(batch.labels)
    return total, count
