"""A job on more than two machines."""

import numpy as np
import pytest

from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.trainer.config import TrainConfig


@pytest.mark.cluster
def test_one_epoch_on_four_machines(emulation, nothing_left, partition_of, tmp_path):
    """Two machines are what most other tests use."""
    config = TrainConfig(epochs=1, fanouts=(5, 5), batch_size=100, hidden_size=16)
    result = run_distributed(partition_of(4), Layout(emulate=4), config, tmp_path / "run")
    assert result["world_size"] == len(result["bytes_sent"]) == 4
    assert 0 < result["test_accuracy"] < 1  # one step each does not teach much
    assert len(np.load(tmp_path / "run" / "predictions.npy")) == sum(result["partition"]["nodes"])
