"""The same epochs over cables of several speeds, in one job: every rank changes the speed of its own machine's card.

Servers and trainers run this module. Each speed gets the same seeds, so the same batches.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from pyroute2 import IPRoute
from torch.nn.parallel import DistributedDataParallel

from support.multi_process import train_epoch
from tutorial_lib.batches.nodes import BatchLoader
from tutorial_lib.cluster.emulated import parse_wire
from tutorial_lib.tasks.node import TrainData
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.seeding import start_epoch
from tutorial_lib.trainer.session import Session, join, serve_if_server

HANDLE, ROOT = 0x10000, 0xFFFFFFFF
BURST = 256 * 1024  # bytes that may go at once


def set_wire(speed: str, interface: str = "eth0") -> None:
    """Limit what leaves this machine: ``tc qdisc replace dev eth0 root tbf rate SPEED``; "unshaped" has no limit."""
    rate = parse_wire(speed)  # bytes per second, None for no limit
    with IPRoute() as ip:
        (index,) = ip.link_lookup(ifname=interface)
        if rate is not None:
            ip.tc("replace", "tbf", index, HANDLE, rate=rate, burst=BURST, limit=BURST + int(0.4 * rate))
        elif any(limited["handle"] == HANDLE for limited in ip.get_qdiscs(index)):
            ip.tc("del", index=index, handle=HANDLE, parent=ROOT)


def compare(session: Session, config: TrainConfig, num_classes: int, speeds: list[str]) -> None:
    """``config.epochs`` epochs at each speed; epoch k of speed s has the number s * epochs + k in the events."""
    ndata = session.graph.ndata
    train = session.split(ndata["train_mask"])
    data = TrainData(session.graph, ndata["feat"], ndata["label"], train, train)
    loader = BatchLoader(session.graph, train, config.fanouts, config.batch_size, shuffle=True, threads=1)
    model = DistributedDataParallel(config.model(data.features.shape[1], num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    train_epoch(model, optimizer, data, loader)  # not measured: the first one opens connections
    for s, speed in enumerate(speeds):
        set_wire(speed)
        for epoch in range(config.epochs):
            start_epoch(config.seed, epoch)  # a barrier, too: all machines have the new speed
            train_epoch(model, optimizer, data, loader, epoch=s * config.epochs + epoch, emit=session.events.emit)


def main(graph_name: str, settings: dict[str, Any]) -> None:
    """What each trainer does."""
    config = TrainConfig.from_dict(settings["config"])
    with join(graph_name, seed=config.seed) as session:
        compare(session, config, settings["num_classes"], settings["speeds"])


if __name__ == "__main__":
    serve_if_server()  # a server stays in here until the job ends
    main(sys.argv[1], json.loads(sys.argv[2]))
