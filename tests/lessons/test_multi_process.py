"""The course's training program on one machine: any number of ranks takes the steps of one process."""

from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from program_support import run, scripts_in

from tutorial_lib.data import Dataset

pytestmark = [pytest.mark.whole_run, pytest.mark.usefixtures("nothing_left")]


def trained(scripts: Path, ranks: int, **options: Any) -> dict[str, Any]:
    """What ``ddp_train.py`` has written after a run on the graph of the folder."""
    words = [f"--{name}={value}" for name, value in options.items()]
    out = scripts / "out" / f"{ranks}.pt"
    files = [f"--graph={scripts / 'graph.bin'}", f"--out={out}"]
    run(scripts, "ddp_train.py", (scripts / "ddp_train.py").read_text(), ranks, *files, *words, check=True)
    return torch.load(out)


@pytest.fixture(scope="module")
def scripts(small_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = scripts_in(tmp_path_factory.mktemp("ranks"))
    dgl.save_graphs(str(scripts / "graph.bin"), [small_dataset.graph])
    return scripts


def test_ranks_take_the_steps_of_one_process(scripts, small_dataset):
    """All neighbors and no dropout leave nothing to chance. The last step leaves one of three ranks without a node."""
    count = int(small_dataset.graph.ndata["train_mask"].sum())
    batch_size = next(size for size in range(60, 400, 3) if count % size in (1, 2))
    one, three = (trained(scripts, n, epochs=2, fanout=-1, dropout=0.0, batch_size=batch_size) for n in (1, 3))
    for a, b in zip(one["epochs"], three["epochs"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-3)
        assert a["val_accuracy"] == pytest.approx(b["val_accuracy"], abs=0.01)
    for name, weight in one["model"].items():
        assert torch.allclose(weight, three["model"][name], atol=0.01)
