"""The checkers of lesson 12 know right from wrong; its helpers read commands and pages; its pictures can be drawn."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from solution_support import lesson_code, solutions, verdict

from support.exercises import lesson_12
from support.lessons import whole_run
from support.plots import whole_run as plots
from tutorial_lib.errors import InputError

ANSWERS = solutions("12")
IN_CELLS = lesson_code("12", "REAL", "GENERATED", "choose", "command_line", "has_event", "milestones", "read_page")
choose = IN_CELLS.choose
to_original = ANSWERS.to_original
plan_machines = ANSWERS.plan_machines
real_cluster = ANSWERS.real_cluster


RIGHT = (
    (lesson_12.check_to_original, to_original),
    (lesson_12.check_plan_machines, plan_machines),
    (lesson_12.check_real_cluster, real_cluster),
)


@pytest.mark.parametrize(("check", "answer"), RIGHT, ids=lambda f: f.__name__)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


def _in_place(rows: torch.Tensor, node_map: torch.Tensor) -> torch.Tensor:
    rows[:] = to_original(rows, node_map)
    return rows


def _rounded_down(nodes, edges, train, widths, machines, batch, remote) -> tuple[int, int]:
    return nodes // machines * sum(widths) * 4 + edges // machines * 32, 0


def _one_rank(**counts: Any) -> tuple[int, int]:
    memory, wire = plan_machines(**counts)
    return memory, wire // counts["machines"]


def _words(change: Callable[[list[str]], list[str]]) -> Callable[..., tuple[str, list[str]]]:
    def answer(**cluster: Any) -> tuple[str, list[str]]:
        text, words = real_cluster(**cluster)
        return text, change(words)

    return answer


def _other_text(text: str) -> Callable[..., tuple[str, list[str]]]:
    return lambda **cluster: (text, real_cluster(**cluster)[1])


WRONG = [
    (lesson_12.check_to_original, lambda rows, node_map: rows[node_map], r"got +tensor \(3,\).*expected +tensor"),
    (lesson_12.check_to_original, lambda rows, _map: rows, "node_map\\[i\\]: write it there"),
    (lesson_12.check_to_original, _in_place, "the argument is as before"),
    (lesson_12.check_to_original, lambda _rows, _map: None, "got +None"),
    (lesson_12.check_plan_machines, _rounded_down, r"machines 2.*got +344000.*expected +344080.*rounded up"),
    (lesson_12.check_plan_machines, _one_rank, r"on the wire in an epoch\n +got +4800\n +expected +9600"),
    (lesson_12.check_plan_machines, lambda **_: 7, "got +'int'"),
    (lesson_12.check_real_cluster, lambda **_: None, "got +'NoneType'"),
    (lesson_12.check_real_cluster, _other_text("node-1\n"), "'node-1' is not an IPv4 address"),
    (lesson_12.check_real_cluster, _other_text("10.1.0.5\n10.1.0.6\n"), r"got +\[\('10.1.0.5', 30050\).*expected"),
    (lesson_12.check_real_cluster, _words(lambda w: [*w, "--emulate", "3"]), "would be refused\n +choose one of"),
    (lesson_12.check_real_cluster, _words(lambda w: [*w, "--sheared"]), "would be refused\n +No such option"),
    (lesson_12.check_real_cluster, _words(lambda w: [x for x in w if x != "--full"]), r"as full\n +got +False"),
    (
        lesson_12.check_real_cluster,
        _words(lambda w: [*w, "--ssh_port", "22"]),
        r"ssh_port\n +got +22\n.*2222",
    ),
    (
        lesson_12.check_real_cluster,
        _words(lambda w: ["other.txt" if x == "ip_config.txt" else x for x in w]),
        "--ip_config\n +got +'other.txt'",
    ),
    (lesson_12.check_real_cluster, _words(lambda w: ["train", *w[1:]]), "the command is train, not finale"),
]


@pytest.mark.parametrize(("check", "answer", "says"), WRONG)
def test_wrong_answer(check, answer, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = verdict(capsys, check, answer)
    assert re.match(r"Exercise \d: not yet\. ", said)
    assert re.search(says, said, flags=re.DOTALL), said


def test_the_data_set_of_the_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one when its files are there, unless the environment names another."""
    monkeypatch.delenv("TUTORIAL_DATASET", raising=False)
    source, config = choose(tmp_path)
    assert (source.name, source.scale, source.root) == ("synthetic-products", 0.01, tmp_path)
    monkeypatch.setitem(
        choose.__globals__, "is_present", lambda name, root: (name, root) == ("ogbn-products", tmp_path)
    )
    real, recipe = choose(tmp_path)
    assert (real.name, recipe.fanouts, recipe.hidden_size) == ("ogbn-products", (15, 10, 5), 256)
    monkeypatch.setenv("TUTORIAL_DATASET", "synthetic-products")
    assert choose(tmp_path) == (source, config)


@pytest.mark.parametrize("name", ["synthetic-products", "ogbn-products"])
def test_the_command_has_the_same_settings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTORIAL_DATASET", name)
    source, config = choose(tmp_path)
    options = whole_run.options_of(IN_CELLS.command_line(source, config))
    assert options["dataset"] == name
    assert options["scale"] == (source.scale if name == "synthetic-products" else None)
    assert options["fanouts"] == ",".join(map(str, config.fanouts))
    for field in ("epochs", "batch_size", "hidden_size", "learning_rate", "seed"):
        assert options[field] == getattr(config, field)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "missing, not finale"),
        (["finale", "--epochs", "many"], "--epochs"),
        (["finale", "--emulate", "2", "--ip_config", "f"], "choose one of"),
        (["finale", "--copy_to", "d"], "they need --ip_config"),
        (["finale", "--help"], "show its help"),
    ],
)
def test_commands_that_would_be_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=says):
        whole_run.options_of(words)


def test_milestones_are_the_same_in_each_run() -> None:
    output = (
        "    0.1 s  step 1 of 6: a\n   12.5 s  rank 0 joined\n  100.0 s  continuing after epoch 3 from the checkpoint\n"
    )
    assert IN_CELLS.milestones(output) == "step 1 of 6: a\ncontinuing after epoch K from the checkpoint"


def test_commands_are_run_and_stopped(tmp_path: Path, nothing_left, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook
    page = whole_run.run_command(["data", "--help"]).stdout
    assert "data set" in page
    assert "\033" not in page
    with pytest.raises(RuntimeError, match="ended too early"):
        whole_run.run_command(["data", "no-such-data"], stop_at=lambda: False)
    begin = time.monotonic()
    stopped = whole_run.run_command(["finale", "--out", str(tmp_path / "f")], stop_at=lambda: True)
    assert stopped.returncode in (130, -2)  # -2: still in the interpreter's own start
    assert time.monotonic() - begin < 20


def test_events_of_a_run(tmp_path: Path) -> None:
    assert not IN_CELLS.has_event(tmp_path, "epoch")
    (tmp_path / "events.jsonl").write_text('{"time": 1.0, "kind": "epoch"}\n{"time": 2')
    assert IN_CELLS.has_event(tmp_path, "epoch")
    assert not IN_CELLS.has_event(tmp_path, "checkpoint")


def test_the_page_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text('<p class="data">\nData: <strong>a &amp; b</strong>,\nnot real.</p><img alt="Loss" src="x">')
    assert IN_CELLS.read_page(path) == ("Data: a & b, not real.", ["Loss"])


def test_pictures_say_what_they_show() -> None:
    steps = plots.steps_figure()
    words = " ".join(text.get_text() for text in steps.axes[0].texts)
    for word in ("machines", "partition", "launch", "evaluation", "predictions.npy", "report.html"):
        assert word in words
