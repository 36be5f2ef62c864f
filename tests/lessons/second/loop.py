"""A second solution of the holes in ``loop.py``."""

import dgl
import torch


def train_epoch(g, loader, model, optimizer):
    model.train()
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    losses, seen = [], 0
    for inputs, seeds, blocks in loader:
        optimizer.zero_grad()
        total = criterion(model(blocks, g.ndata["feat"][inputs]), g.ndata["label"][seeds])
        (total / len(seeds)).backward()
        optimizer.step()
        losses.append(float(total))
        seen += len(seeds)
    return sum(losses) / seen


def accuracy(g, scores, mask):
    nodes = dgl.distributed.node_split(g.ndata[mask], g.get_partition_book())
    predicted = torch.max(scores, dim=1).indices[nodes]
    return int((predicted == g.ndata["label"][nodes]).sum()) / len(nodes)


def fit(g, loader, model, optimizer, num_epochs):
    results, kept = [], None
    while len(results) < num_epochs:
        loss = train_epoch(g, loader, model, optimizer)
        scores = model.inference(g, g.ndata["feat"])
        results.append((loss, accuracy(g, scores, "val_mask")))
        if results[-1][1] > max([value for _, value in results[:-1]], default=-1):
            kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return results
