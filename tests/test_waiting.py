"""Waits have a limit and say what they wait for."""

from __future__ import annotations

import threading
import time

import pytest

from tutorial_lib import errors as waiting
from tutorial_lib.errors import WaitedTooLong, attempts
from tutorial_lib.job import handle as jobs


def test_the_first_attempt_may_do(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it need not sleep"))
    for left in attempts("nothing", 5):
        assert left == pytest.approx(5, abs=0.1)
        break


def test_after_the_limit_an_error_says_what_was_waited_for():
    tried = []
    with pytest.raises(WaitedTooLong, match=r"^waited 0\.2 s for the moon$"):
        for left in attempts("the moon", 0.2, pause=0.15):
            tried.append(left)
    assert len(tried) == 3  # at once, after 0.15 s, and at the limit
    assert tried[-1] == 0


def test_a_long_wait_says_so_once(monkeypatch):
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 0.05)
    said = []
    with pytest.raises(WaitedTooLong):
        for _ in attempts("the moon", 0.3, pause=0.05, say=said.append):
            pass
    assert said == ["waiting for the moon (for at most 0.3 s)"]


def test_a_job_that_does_not_stop_is_not_waited_for_for_ever(tmp_path, monkeypatch, capsys):
    """As one in the middle of METIS: first a sentence, then an error; the next stop finds it ended."""
    go_on = threading.Event()
    monkeypatch.setattr(jobs, "run_distributed", lambda *_args, **_kwargs: go_on.wait(60))
    monkeypatch.setattr(jobs, "STOP_SECONDS", 0.6)
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 0.1)
    job = jobs.start_training(
        jobs.DataSource("synthetic-products"), jobs.Layout(), jobs.TrainConfig(), tmp_path / "run"
    )
    try:
        with pytest.raises(WaitedTooLong, match=f"waited 0.6 s for the job in {tmp_path / 'run'} to end") as caught:
            job.stop()
        assert "Restart the kernel" in caught.value.remedy
        assert capsys.readouterr().err == f"waiting for the job in {tmp_path / 'run'} to end (for at most 0.6 s)\n"
    finally:
        go_on.set()
    job.stop()
    assert not job.running
