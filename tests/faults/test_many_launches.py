"""Many jobs: on 1, 2, 4 and 8 machines; and twenty in a row, half of them killed, after which the next one works."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fault_support import plan_of

from tutorial_lib.cluster.coordinator import Coordinator
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.trainer.config import TrainConfig

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
JOB = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fault_support import plan_of
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.coordinator import Coordinator
from tutorial_lib.partition import load_partition_folder
folder = Path(sys.argv[3])
with EmulatedCluster(1) as cluster:
    plan = plan_of(cluster, load_partition_folder(Path(sys.argv[2])), folder, "loop:15", "-")
    Coordinator(cluster, plan).run()
print("done")
"""


@pytest.mark.faults
@pytest.mark.parametrize("count", [1, 4, 8])
def test_one_epoch_on_machines(count, emulation, partition_of, tmp_path):
    """Two machines are what most other tests use."""
    config = TrainConfig(epochs=1, fanouts=(5, 5), batch_size=100, hidden_size=16)
    result = run_distributed(partition_of(count), Layout(emulate=count), config, tmp_path / "run")
    assert result["world_size"] == count
    assert len(result["bytes_sent"]) == count
    assert 0 < result["test_accuracy"] < 1  # one step each does not teach much
    assert len(np.load(tmp_path / "run" / "predictions.npy")) == sum(result["partition"]["nodes"])


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_twenty_launches_half_of_them_killed(emulation, partition_of, tmp_path):
    random.seed(0)
    killed = 0
    for k in range(20):
        folder = tmp_path / str(k)
        folder.mkdir()
        command = [sys.executable, "-c", JOB, str(Path(__file__).parents[1]), str(partition_of(1).folder), str(folder)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if k % 2:
            time.sleep(random.uniform(0.2, 8))
            job.send_signal(random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            killed += job.wait(timeout=30) != 0
            job.communicate()
        else:
            out, errors = job.communicate(timeout=120)
            assert out == "done\n", errors
    assert killed >= 5  # some had ended before their signal came
    with EmulatedCluster(2) as cluster:
        Coordinator(cluster, plan_of(cluster, partition_of(2), tmp_path, "count", "0")).run()
    events = [json.loads(line) for path in tmp_path.glob("logs/*/events-*.jsonl") for line in path.open()]
    assert sum(event.get("seeds", 0) for event in events) == 196
