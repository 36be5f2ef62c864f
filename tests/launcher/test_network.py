"""What the kernel reports about the network of this machine. Between machines, test_train.py checks the bytes."""

import socket

from tutorial_lib.launcher import network
from tutorial_lib.launcher.network import SilentPeers, bytes_sent, find_interface, ipv4_addresses


def test_addresses_agree_with_dgl():
    """L28. DGL sees the first address of each interface."""
    from dgl.distributed.rpc_client import local_ip4_addr_list

    assert {addresses[0] for addresses in ipv4_addresses().values()} == local_ip4_addr_list()
    assert find_interface("127.0.0.1") == "lo"
    assert bytes_sent("lo") == 0


def test_repeated_segments_mean_silent_peer(monkeypatch):
    """L21. A cut of 5 s survives, and 25 s of retransmissions do not."""
    remote = "0000000000000000FFFF000002004D0A:2000"
    clock, fields = [0.0], ["0:", "01004D0A:1000", remote, "01", "0:0", "01:00000001", "0", "0"]
    monkeypatch.setattr(network.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(network, "tcp_connections", lambda: iter([fields]))
    peers, seen = SilentPeers(["10.77.0.2"]), []
    for seconds, retries in [(0, 1), (5, 3), (6, 4), (7, 0), (10, 4), (36, 7), (37, 0), (40, 5)]:
        clock[0], fields[6] = seconds, f"{retries:08X}"
        seen.append(peers.silent_seconds().get("10.77.0.2"))
    assert seen == [None, 0.0, 1.0, None, 0.0, 26.0, None, 0.0]
    assert 5.0 < network.SILENCE_SECONDS < 26.0
    assert SilentPeers(["10.77.0.3"]).silent_seconds() == {}


def test_only_listening_ports_are_found():
    """L22. Ports are read from the kernel, because DGL counts a trial connection as a client."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        found = network.listening_ports()
        assert server.getsockname()[1] in found
        assert client.getsockname()[1] not in found
