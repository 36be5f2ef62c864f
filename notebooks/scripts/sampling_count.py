"""Count the remote input rows of one batch per rank, and compare their size with the received bytes.

Usage: sampling_count.py FOLDER FANOUTS..., for example sampling_count.py counts -1 5,10
"""

import json
import sys
from pathlib import Path

import dgl
import torch.distributed as dist


def sample_blocks(g, seeds, fanouts):
    blocks = []
    for fanout in reversed(fanouts):
        frontier = dgl.distributed.sample_neighbors(g, seeds, fanout)
        blocks.insert(0, dgl.to_block(frontier, seeds))
        seeds = blocks[0].srcdata[dgl.NID]
    return blocks


def received():
    """Return the number of bytes that the network cards of this machine have received, as counted by Linux."""
    dist.barrier()  # all ranks have finished sending
    cards = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    total = sum(int(card[1]) for card in cards if card[0] != "lo:")
    dist.barrier()  # no rank sends before all ranks have read their counters
    return total


def count(g, seeds, fanouts):
    book, feat = g.get_partition_book(), g.ndata["feat"]
    inputs = sample_blocks(g, seeds, fanouts)[0].srcdata[dgl.NID]
    remote = int((book.nid2partid(inputs) != book.partid).sum())
    remote_bytes = remote * feat.shape[1] * 4  # 4 bytes per float32
    before = received()
    feat[inputs]  # fetches the rows
    came = received() - before
    counted = f"{len(inputs)} input rows, {remote} remote: {remote_bytes} bytes"
    print(f"fan-outs {fanouts}: {counted}; {came} bytes came", flush=True)
    ids = {"seeds": seeds.tolist(), "inputs": inputs.tolist()}
    return {"fanouts": fanouts, **ids, "remote_rows": remote, "remote_bytes": remote_bytes, "came": came}


if __name__ == "__main__":
    folder, *wanted = sys.argv[1:]
    dgl.distributed.initialize("ip_config.txt")
    dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph("synthetic-products")
    seeds = dgl.distributed.node_split(g.ndata["train_mask"])[-64:]  # nodes of the rank's part (see lesson 04)
    counts = [count(g, seeds, [int(fanout) for fanout in fanouts.split(",")]) for fanouts in wanted]
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(counts))
