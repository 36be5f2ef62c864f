"""The modern stack trains as the default one does: make test-modern runs this there."""

from __future__ import annotations

import pytest
from commands import check_predictions, train
from shared_data import shared_data

from tutorial_lib.data import load_dataset

# Default stack (torch 2.2.1), 30 epochs on two emulated machines, seed 0.
DEFAULT_STACK = 0.8913


@pytest.mark.modern
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_amazon_computers_as_on_the_default_stack(emulation, nothing_left, data_root, tmp_path):
    """Real data, GraphSAGE on two machines: test accuracies of the stacks differ by less than 0.01."""
    path = str(shared_data("amazon_computers", "amazon_co_buy_computer.npz"))
    result = train(tmp_path / "run", data_root, "--dataset", path, "--epochs", "30", "--emulate", "2")
    assert abs(result["test_accuracy"] - DEFAULT_STACK) < 0.01, result["versions"]
    check_predictions(tmp_path / "run", result, load_dataset(path))
