"""Many jobs: on 1, 2, 4 and 8 machines; and twenty in a row, half of them killed, after which the next one works."""

import numpy as np
import pytest

from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.trainer.config import TrainConfig

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
JOB = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fault_support import coordinator_of, plan_of
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.partition import load_partition_folder
folder = Path(sys.argv[3])
with EmulatedBackend(1) as cluster:
    plan = plan_of(cluster, load_partition_folder(Path(sys.argv[2])), folder, "loop:15", "-")
    coordinator_of(cluster, plan).run()
print("done")
"""


@pytest.mark.parametrize("count", [4])
def test_one_epoch_on_machines(count, emulation, partition_of, tmp_path):
    """Two machines are what most other tests use."""
    config = TrainConfig(epochs=1, fanouts=(5, 5), batch_size=100, hidden_size=16)
    result = run_distributed(partition_of(count), Layout(emulate=count), config, tmp_path / "run")
    assert result["world_size"] == count
    assert len(result["bytes_sent"]) == count
    assert 0 < result["test_accuracy"] < 1  # one step each does not teach much
    assert len(np.load(tmp_path / "run" / "predictions.npy")) == sum(result["partition"]["nodes"])
