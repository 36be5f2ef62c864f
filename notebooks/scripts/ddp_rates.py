"""Run ddp_train.py on each number of ranks, in two rounds. Start with python scripts/ddp_rates.py GRAPH RANKS..."""

import itertools
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import torch.multiprocessing as mp

import ddp_train
from leave import leave


def rank_main(rank, world_size, port, args):
    names = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    ddp_train.main(args)
    leave()


if __name__ == "__main__":
    args = SimpleNamespace(graph=sys.argv[1], epochs=5, batch_size=256, fanout=10, dropout=0.5)
    for turn, count in itertools.product((1, 2), map(int, sys.argv[2:])):
        with socket.create_server(("127.0.0.1", 0)) as server:  # port 0 lets the kernel choose a free port
            port = server.getsockname()[1]
        args.out = Path(args.graph).with_name(f"ranks-{count}-{turn}.pt")
        mp.start_processes(rank_main, args=(count, port, args), nprocs=count, start_method="fork")
