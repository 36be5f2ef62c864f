"""Tests of ``loop.py``."""

import math

import pytest
import torch
from scores import Scores

import loop

BATCHES = [([0, 1], [0, 1], None), ([3], [3], None)]  # (input nodes, seeds, blocks): the last batch is smaller


def epoch_of(tiny, lr=1.0, certain=None):
    model = Scores().eval()
    if certain is not None:  # the model is certain of the class of this node
        model.weight.data[certain, tiny.ndata["label"][certain]] = 100.0
    loader = [(torch.tensor(inputs), torch.tensor(seeds), blocks) for inputs, seeds, blocks in BATCHES]
    return model, loop.train_epoch(tiny, loader, model, torch.optim.SGD(model.parameters(), lr=lr))


def test_loss_is_the_mean_over_seeds(tiny):
    """Weight the loss of each batch by len(seeds), because the mean of the batches is not the mean of the seeds."""
    _, loss = epoch_of(tiny, lr=0.0, certain=3)
    got, expected = float(loss), math.log(3) * 2 / 3  # the loss is log(3) for seeds 0 and 1, and zero for seed 3
    assert got == pytest.approx(expected, abs=1e-5)


def test_each_batch_changes_the_weights_once(tiny):
    """After zero_grad, backward and step, the row of a seed has moved by the gradient of its own batch only."""
    model, _ = epoch_of(tiny)
    got = model.weight.detach()[[0, 1, 3]]
    expected = torch.tensor([[1 / 3, -1 / 6, -1 / 6], [-1 / 6, 1 / 3, -1 / 6], [-1 / 3, -1 / 3, 2 / 3]])
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(("mask", "share"), [("train_mask", 2 / 3), ("val_mask", 0.5)])
def test_accuracy_on_a_mask(tiny, mask, share):
    """Select the rows of the scores by the IDs of node_split, and compare the largest score with the label."""
    scores = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]])
    got, expected = loop.accuracy(tiny, scores, mask), share
    assert got == pytest.approx(expected)


def fit_with(tiny, monkeypatch, accuracies):
    """Return the weights and the history, where epoch k sets all weights to k and has the k-th of these accuracies."""
    epochs = iter(range(1, 1 + len(accuracies)))
    model = Scores()

    def train_epoch(_g, _loader, model, _optimizer):
        with torch.no_grad():
            model.weight.fill_(next(epochs))
        return 0.5

    monkeypatch.setattr(loop, "train_epoch", train_epoch)
    monkeypatch.setattr(loop, "accuracy", lambda _g, scores, _mask: accuracies[int(scores[0, 0]) - 1])
    history = loop.fit(tiny, [], model, None, len(accuracies))
    return model.weight[0, 0].item(), history


def test_fit_returns_each_epoch(tiny, monkeypatch):
    """Append the loss and the validation accuracy of each epoch, also of an epoch that is not the best."""
    _, got = fit_with(tiny, monkeypatch, [0.4, 0.8, 0.6])
    expected = [(0.5, 0.4), (0.5, 0.8), (0.5, 0.6)]
    assert [tuple(pair) for pair in got] == expected


@pytest.mark.parametrize(("accuracies", "best"), [([0.4, 0.8, 0.6], 2.0), ([0.7, 0.2, 0.7], 1.0), ([0.0], 1.0)])
def test_fit_keeps_the_best_weights(tiny, monkeypatch, accuracies, best):
    """Copy the weights of the best epoch, because later steps change the tensors of model.state_dict()."""
    got, expected = fit_with(tiny, monkeypatch, accuracies)[0], best
    assert got == expected
