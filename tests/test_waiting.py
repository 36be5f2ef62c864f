"""Waits have a limit and say what they wait for."""

from __future__ import annotations

import time

import pytest

from tutorial_lib import errors as waiting
from tutorial_lib.errors import WaitedTooLong, attempts


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
