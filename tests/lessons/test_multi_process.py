"""The course's training program on one machine: any number of ranks takes the steps of one process."""

from pathlib import Path

import dgl
import pytest
import torch
from program_support import copy_scripts, run_program

from tutorial_lib.data import Dataset

pytestmark = [pytest.mark.whole_run, pytest.mark.usefixtures("nothing_left")]


def trained(scripts: Path, ranks: int, batch_size: int) -> dict[str, torch.Tensor]:
    """Return the best weights after two epochs of ``ranks.py`` on the graph of the folder."""
    out = scripts / "out" / f"{ranks}.pt"
    words = [f"--graph={scripts / 'graph.bin'}", f"--out={out}", "--epochs=2", "--fanout=-1", "--dropout=0"]
    source = (scripts / "ranks.py").read_text()
    run_program(scripts, "ranks.py", source, ranks, *words, f"--batch_size={batch_size}", check=True)
    return torch.load(out)


@pytest.fixture(scope="module")
def scripts(small_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = copy_scripts(tmp_path_factory.mktemp("ranks"))
    dgl.save_graphs(str(scripts / "graph.bin"), [small_dataset.graph])
    return scripts


def test_ranks_take_the_steps_of_one_process(scripts, small_dataset):
    """All neighbors and no dropout leave nothing to chance. The last step leaves some ranks without a node."""
    count = int(small_dataset.graph.ndata["train_mask"].sum())
    batch_size = next(size for size in range(61, count) if count % size == 1 and size % 2 and size % 3)
    one = trained(scripts, 1, batch_size)
    for ranks in (2, 3, 4):
        for name, weight in trained(scripts, ranks, batch_size).items():
            assert torch.allclose(weight, one[name], atol=0.01), (ranks, name)
