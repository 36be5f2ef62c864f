"""Bytes per peer, counted by the kernel: on loopback here; between machines in test_train.py."""

import socket

import pytest

from tutorial_lib.cluster import network
from tutorial_lib.tools.finale.figures import traffic_figure


@pytest.fixture
def connection():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname(), timeout=10) as one, listener.accept()[0] as other:
            yield one, other


def send(count: int, one: socket.socket, other: socket.socket) -> None:
    one.sendall(b"x" * count)
    while count:
        count -= len(other.recv(65536))


def test_the_last_bytes_of_a_connection_count(connection):
    """Nobody looks between them and its end; a connection may also begin and end between two looks."""
    counted = network.Traffic("lo", {"127.0.0.1": "here"})
    send(70_000, *connection)
    for end in connection:
        end.close()
    assert counted.received() == {"here": 0}
    counted.look()
    assert 70_000 <= counted.received()["here"] < 70_100


def test_what_came_before_the_job_is_not_counted_and_closed_connections_are(connection):
    send(50_000, *connection)
    counted = network.Traffic("lo", {"127.0.0.1": "here"})
    send(70_000, *connection)
    counted.look()
    for end in connection:
        end.close()
    counted.look()
    assert 70_000 <= counted.received()["here"] < 70_000 + 50_000


def test_a_machine_that_sent_nothing_is_listed_with_zero():
    assert network.Traffic("lo", {"192.0.2.1": "far"}).received() == {"far": 0}


def test_a_kernel_without_sock_diag_gives_no_figures(monkeypatch):
    """As in some containers: the socket cannot be made."""
    monkeypatch.setattr(network, "SOCK_DIAG", 31)  # no protocol of netlink
    assert network.Traffic("lo", {"192.0.2.1": "far"}).received() == {}


def test_one_machine_alone_has_no_traffic():
    assert network.Traffic("lo", {}).received() == {}


def test_a_kernel_that_does_not_tell_gives_no_figures_instead_of_zeros(monkeypatch):
    def refused(ends):
        raise OSError("no list")

    monkeypatch.setattr(network, "_received", refused)
    assert network.Traffic("lo", {"192.0.2.1": "far"}).received() == {}


def test_the_picture_has_senders_in_rows_and_receivers_in_columns():
    ax = traffic_figure({"a": {"b": 3_000_000}, "b": {"a": 1_000_000}}).axes[0]
    assert [text.get_text() for text in ax.texts] == ["-", "1", "3", "-"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a\nout: 1 MB", "b\nout: 3 MB"]


def test_the_picture_needs_two_machines():
    with pytest.raises(ValueError, match="two"):
        traffic_figure({"machine-0": {}})
