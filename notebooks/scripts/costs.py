"""Model the bytes of a job. Lesson 00 starts this module, 03 adds rows, and later lessons add seconds and memory."""

from pathlib import Path

ID = 8  # bytes of an int64
FLOAT = 4  # bytes of a float32


def feature_bytes(rows, width):
    """Return the bytes of a table of float32 with this number of rows and columns."""
    return FLOAT * rows * width


def structure_bytes(nodes, edges):
    """Return the bytes of a graph for sampling: where the list of each node starts, and two numbers per edge."""
    return ID * (nodes + 1) + 2 * ID * edges


def most_rows(seeds, fanouts):
    """Return the largest number of input rows of a batch: a hop adds ``fanout`` neighbors of each known node."""
    for fanout in fanouts:
        seeds *= 1 + fanout
    return seeds


def received_bytes(remote_rows, requested_rows, width):
    """Return the bytes that a machine receives: its remote rows, and an ID for each row that others request from it."""
    return feature_bytes(remote_rows, width) + ID * requested_rows


def received():
    """Return the number of bytes that the network cards of this machine have received, as counted by Linux."""
    import torch.distributed as dist

    dist.barrier()  # all ranks have finished sending
    cards = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    total = sum(int(card[1]) for card in cards if card[0] != "lo:")
    dist.barrier()  # no rank sends before all ranks have read their counters
    return total


def all_reduce_bytes(values, ranks):
    """Return the bytes that each rank sends to add float32 values over a ring (lesson 05)."""
    return 2 * (ranks - 1) * FLOAT * values / ranks


def transfer_seconds(size, mbit):
    """Return the seconds that ``size`` bytes take over a link of ``mbit`` Mbit/s (lesson 04)."""
    return 8 * size / (mbit * 1e6)
