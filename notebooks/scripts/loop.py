"""Train GraphSAGE on a DistGraph in standalone mode, in one process (lesson 01)."""

import argparse
import copy

import dgl
import torch
import torch.nn.functional as F


def train_epoch(g, loader, model, optimizer):
    """Train one epoch and return the mean of the cross-entropy over all seed nodes, a float.

    Call ``model.train()`` first. The last batch can be smaller than the other ones, so weight the loss of a batch by
    its number of seeds.

    Args:
        g: DistGraph. ``g.ndata["feat"]`` and ``g.ndata["label"]`` only support reading rows by ID.
        loader: yields (input nodes, seeds, blocks) for each batch.
    """
    model.train()
    total = count = 0
    for input_nodes, seeds, blocks in loader:
        scores = model(blocks, g.ndata["feat"][input_nodes])
        loss = F.cross_entropy(scores, g.ndata["label"][seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(seeds)
        count += len(seeds)
    return total / count


def accuracy(g, scores, mask):
    """Return the share of correct predictions, a float, on the nodes of ``g.ndata[mask]``.

    Args:
        scores: tensor (N, classes) with the scores of all nodes of the graph.
        mask: name of the node data, such as ``"val_mask"``. Use ``dgl.distributed.node_split``.
    """
    ids = dgl.distributed.node_split(g.ndata[mask])
    right = scores[ids].argmax(1) == g.ndata["label"][ids]
    return right.double().mean().item()


def fit(g, loader, model, optimizer, num_epochs):
    """Train, and keep the weights of the best epoch.

    Call ``train_epoch``, ``model.inference`` and ``accuracy`` once per epoch. At the end, the model has the weights of
    the epoch with the highest validation accuracy (of the first one, if several are equal). Note that
    ``model.state_dict()`` refers to the weights of the model and does not copy them.

    Returns:
        List of (loss, validation accuracy), one pair per epoch.
    """
    history, best, weights = [], -1.0, None
    for _ in range(num_epochs):
        loss = train_epoch(g, loader, model, optimizer)
        scores = model.inference(g, g.ndata["feat"])
        valid = accuracy(g, scores, "val_mask")
        history.append((loss, valid))
        if valid > best:
            best, weights = valid, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    return history


def main():
    """Train on a folder with one part, and print the losses and accuracies."""
    from sage import GraphSAGE

    parser = argparse.ArgumentParser()
    parser.add_argument("--part_config", required=True)
    parser.add_argument("--num_epochs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)  # DGL has one random generator per thread
    dgl.distributed.initialize("ip_config.txt")
    g = dgl.distributed.DistGraph("products", part_config=args.part_config)
    train_ids = dgl.distributed.node_split(g.ndata["train_mask"])
    torch.manual_seed(0)
    dgl.seed(0)
    model = GraphSAGE(g.ndata["feat"].shape[1], 64, 47)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 10])
    loader = dgl.dataloading.DistNodeDataLoader(g, train_ids, sampler, batch_size=256, shuffle=True)
    history = fit(g, loader, model, torch.optim.Adam(model.parameters(), lr=0.01), args.num_epochs)
    for epoch, (loss, valid) in enumerate(history):
        print(f"epoch {epoch} loss {loss:.4f} valid {valid:.4f}")
    print(f"test {accuracy(g, model.inference(g, g.ndata['feat']), 'test_mask'):.4f}")


if __name__ == "__main__":
    main()
