"""What a finale says before it starts, held to what was measured; and the question before something large."""

from __future__ import annotations

import dataclasses
import os

import pytest

from tutorial_lib.data.ogb import SPECS
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.finale.forecast import Forecast, agree
from tutorial_lib.tools.finale.settings import FinaleSettings
from tutorial_lib.tools.plan import COMMAND
from tutorial_lib.trainer.config import TrainConfig


def settings_at(scale: float, machines: int = 2, **config) -> FinaleSettings:
    source = DataSource("synthetic-products", scale=scale)
    return FinaleSettings(source=source, layout=Layout(machines), config=TrainConfig(**config), scaling=())


def test_a_forecast_tells_what_was_measured_at_full_size_within_its_own_tolerance():
    """benchmarks/RESULTS.md: 10.7 GB in use, 0.6 before; an epoch of training 56 s; a finale of one epoch."""
    one, two = (Forecast.of(settings_at(1.0, epochs=epochs)) for epochs in (1, 2))
    assert (one.nodes, one.edges) == SPECS["ogbn-products"][:2]
    assert one.memory == pytest.approx(10.1e9, rel=0.2)
    assert 250 < one.seconds < 1300
    cores = min(2, len(os.sched_getaffinity(0)))
    assert 56 / 2 < (two.seconds - one.seconds) * cores / 2 < 56 * 2
    small = Forecast.of(settings_at(0.01, epochs=1))
    assert small.memory < one.memory / 3
    assert small.seconds < 60
    assert Forecast.of(settings_at(0.01, machines=4)).memory > small.memory  # each has processes of its own
    assert Forecast.of(dataclasses.replace(settings_at(1.0), source=DataSource("amazon-computers"))) is None


def test_memory_as_it_was_measured_on_emulated_machines():
    """benchmarks/RESULTS.md, growth: all processes together."""
    measured = {(0.02, 2): 2.3e9, (0.02, 4): 3.7e9, (0.1, 2): 3.4e9}
    for (scale, machines), memory in measured.items():
        assert Forecast.of(settings_at(scale, machines)).memory == pytest.approx(memory, rel=0.15)


def test_all_neighbours_take_longer_than_a_few():
    few, every = (Forecast.of(settings_at(1.0, fanouts=fanouts)) for fanouts in ((15, 10, 5), (-1, -1, -1)))
    assert every.seconds > 20 * few.seconds
    assert every.large


def test_scaling_runs_count_whole_unless_the_graph_is_generated():
    """They use 0.02 of the generated graph, and other data sets as they are, on as many machines as are asked for."""

    def more(settings: FinaleSettings) -> tuple[float, float]:
        """Seconds and bytes that scaling runs on 1, 2 and 4 machines add."""
        alone, scaled = (Forecast.of(dataclasses.replace(settings, scaling=counts)) for counts in ((), (1, 2, 4)))
        return scaled.seconds - alone.seconds, scaled.memory - alone.memory

    generated = settings_at(1.0)
    seconds, memory = more(generated)
    assert 60 < seconds < 200
    assert memory == 0  # the training at full size needs more
    seconds, memory = more(dataclasses.replace(generated, source=DataSource("ogbn-products")))
    assert seconds > 500
    assert memory >= 2e9


def test_a_forecast_is_a_sentence_with_its_doubt():
    said = str(Forecast(1000, 25_000, 3.21e9, 16e9, 0.0, 125.0))
    assert said.startswith("forecast: 1,000 nodes, 25,000 edges; about 3.2 GB of memory here, of 16.0 GB; about 2 min")
    assert "half or twice" in said
    assert "of 16.0 GB, and 2.0 GB on each machine; about" in str(Forecast(1000, 25_000, 3.21e9, 16e9, 2e9, 125.0))


def test_machines_over_ssh_have_a_memory_of_their_own(tmp_path):
    (tmp_path / "ip_config.txt").write_text("10.0.0.1\n10.0.0.2\n")
    real = Layout(None, real=RealMachines(tmp_path / "ip_config.txt"))
    here, there = settings_at(1.0), dataclasses.replace(settings_at(1.0), layout=real)
    assert Forecast.of(here).there == 0
    assert Forecast.of(there).memory < Forecast.of(here).memory
    assert Forecast.of(there).there == pytest.approx((Forecast.of(here).memory - COMMAND) / 2)


SMALL, LARGE = Forecast(1, 1, 1e9, 8e9, 0.0, 60.0), Forecast(1, 1, 9e9, 8e9, 0.0, 60.0)


def test_something_small_starts_without_a_question(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    agree(SMALL)


@pytest.mark.parametrize("forecast", [LARGE, Forecast(1, 1, 1e9, 8e9, 0.0, 3600.0)])
def test_something_large_is_refused_where_nobody_can_be_asked(forecast, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    with pytest.raises(InputError, match="nobody can be asked") as refused:
        agree(forecast)
    assert "--yes" in refused.value.remedy


@pytest.mark.parametrize(
    ("answer", "starts"), [("y", True), ("YES ", True), ("", False), ("n", False), ("what", False)]
)
def test_a_person_is_asked_before_something_large(answer, starts, monkeypatch):
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr("builtins.input", lambda _question: answer)
    if starts:
        agree(LARGE)
    else:
        with pytest.raises(InputError, match="not started"):
            agree(LARGE)
