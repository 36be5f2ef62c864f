"""A task and a data set that do not suit each other: one line, before anything is started."""

from __future__ import annotations

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.tasks import TASKS, check_task, module_of, score_name
from tutorial_lib.tools.cli import main


@pytest.mark.parametrize("task", ["node", "link", "embedding"])
def test_several_types_of_nodes_are_refused(task, data_root, tmp_path, capsys):
    arguments = ["train", "--task", task, "--dataset", "synthetic-academic", "--scale", "0.005", "--emulate", "2"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--root", str(data_root), "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert f"--task {task} needs a graph with one type of nodes, this one has several" in error
    assert "Take --task hetero" in error
    assert not (tmp_path / "run").exists()


def test_unknown_task():
    with pytest.raises(InputError, match="no task 'nodes'"):
        check_task("nodes")


def test_every_task_has_its_module():
    for task in TASKS:
        module = module_of(task)
        assert {"USES_FEATURES", "check", "run", "train_single"} <= set(dir(module))
    assert [score_name(task) for task in TASKS] == ["accuracy", "MRR", "accuracy", "accuracy"]
