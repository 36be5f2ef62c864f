"""One batch of each rank: how many of its input rows lie on the other machine, and how many bytes is that?

Usage: sampling_count.py FOLDER FANOUTS..., for example: sampling_count.py counts -1 5,10
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
    """Bytes that have come over this machine's network cards so far, as Linux counts them."""
    dist.barrier()  # nobody sends any more
    cards = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    total = sum(int(card[1]) for card in cards if card[0] != "lo:")
    dist.barrier()  # nobody sends yet
    return total


def count(g, seeds, fanouts):
    book, feat = g.get_partition_book(), g.ndata["feat"]
    inputs = sample_blocks(g, seeds, fanouts)[0].srcdata[dgl.NID]
    remote = int((book.nid2partid(inputs) != book.partid).sum())
    remote_bytes = remote * feat.shape[1] * 4  # float32
    before = received()
    feat[inputs]  # the rows are pulled here
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
    seeds = dgl.distributed.node_split(g.ndata["train_mask"])[-64:]  # of the rank's own part; see lesson 04
    counts = [count(g, seeds, [int(fanout) for fanout in fanouts.split(",")]) for fanouts in wanted]
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(counts))
