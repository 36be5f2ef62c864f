"""The checker of lesson 08 distinguishes right and wrong answers, and the lesson skips its cells without GraphBolt."""

from pathlib import Path

import dgl.graphbolt as gb
import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from solution_support import answer_tests, solutions

from support import stack
from support.exercises import lesson_08
from support.processes import fork

batches_per_rank = solutions("08").batches_per_rank

COUNTS_OF_RANKS = {
    "stub": (lambda *_: None, r"got       None\n  expected  \[2, 2, 2, 2\]"),
    "items shared out": (lambda n, r, b, *_: [-(-n // r // b)] * r, r"got .*\n  expected  \[3, 3, 2, 2\]\n  hint"),
    "ignores options": (lambda n, r, b, *_: batches_per_rank(n, r, b, False, False), "drop_last=True"),
    "ignores drop_last": (lambda n, r, b, _, even: batches_per_rank(n, r, b, False, even), "drop_last=True"),
    "always even": (lambda n, r, b, last, _: batches_per_rank(n, r, b, last, True), "drop_uneven_inputs=False"),
}
KINDS = [list, np.array, torch.tensor, lambda counts: [np.int64(count) for count in counts]]
test_right_counts, test_wrong_counts = answer_tests(
    lesson_08.check_batches_per_rank,
    [lambda *case, kind=kind: kind(batches_per_rank(*case)) for kind in KINDS],
    COUNTS_OF_RANKS,
)


def test_the_checker_agrees_with_the_distributed_sampler():
    settings = [{"drop_last": last, "drop_uneven_inputs": even} for last in (False, True) for even in (False, True)]

    def count(_rank: int, _world_size: int) -> list[int]:
        items = gb.ItemSet(torch.arange(19), names="seed_nodes")
        return [len(list(gb.DistributedItemSampler(items, 2, **options))) for options in settings]

    ranks = fork(count, 3, backend="gloo", threads=1, timeout=60)
    for k, options in enumerate(settings):
        assert [found[k] for found in ranks] == lesson_08.batches_of_replicas(19, 3, 2, *options.values())


CELLS = [
    "from support.stack import skip_without_graphbolt\nskip_without_graphbolt()",
    "print('ran')",
    "%%writefile x\ny",
]


@pytest.mark.parametrize("problem", [None, "this is torch 2.13.0"])
def test_cells_are_skipped_without_graphbolt(problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stack, "graphbolt_problem", lambda: problem)
    shell = InteractiveShell()
    monkeypatch.setattr(stack, "get_ipython", lambda: shell)
    for cell in [*CELLS, CELLS[0], CELLS[1]]:  # also if somebody runs the first cell again
        shell.run_cell(cell).raise_error()
    printed = capsys.readouterr().out.splitlines()
    assert Path("x").exists() is (problem is None)
    if problem is None:
        assert printed == ["ran", "Writing x", "ran"]
    else:
        sentence = f"The rest of this notebook is skipped because it needs GraphBolt, and {problem}."
        skipped = "Skipped: this cell needs GraphBolt."
        assert printed == [sentence, skipped, skipped, sentence, skipped]
