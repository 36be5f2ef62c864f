"""Bytes that leave a machine through its network card. Between machines, test_train.py checks them."""

from __future__ import annotations

import pytest

from tutorial_lib.cluster import network


def test_bytes_are_counted_from_the_start_of_the_job_and_reported_when_they_change(monkeypatch: pytest.MonkeyPatch):
    counter, told = [1000], []
    monkeypatch.setattr(network, "bytes_sent", lambda _interface: counter[0])
    sent = network.SentBytes("eth0")
    sent.report(told.append)
    assert told == []
    counter[0] += 70_000
    sent.report(told.append)
    sent.report(told.append)
    assert [(message["type"], message["bytes_sent"]) for message in told] == [("traffic", 70_000)]
    assert sent.count == 70_000


def test_nothing_leaves_a_machine_over_loopback():
    assert network.bytes_sent("lo") == 0
