"""DGL's guide as a peer: the loop of guide_loop.py, which ``launch`` starts on each machine."""

import os
import sys
import time
from pathlib import Path

import dgl
import torch
from recording import BATCH_SIZE, CLASSES, DROPOUT, FANOUTS, HIDDEN, LEARNING_RATE, WIDTH, Recorder, parse_options

sys.path.append(str(Path(__file__).parents[1]))
from guide_loop import GraphSAGE, make_loader, train_epoch


def main() -> None:
    """Train as one process of the job."""
    options = parse_options()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # a server stays in this line until the job ends
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(options.seed)
    recorder = Recorder(options.out, rank)
    graph = dgl.distributed.DistGraph("synthetic-products", part_config=os.environ["DGL_CONF_PATH"])
    nodes = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book(), force_even=True)
    model = torch.nn.parallel.DistributedDataParallel(GraphSAGE(WIDTH, HIDDEN, CLASSES, len(FANOUTS), DROPOUT))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(options.seed * 1000 + rank)
    dgl.seed(options.seed * 1000 + rank)
    loader = make_loader(graph, nodes, FANOUTS, BATCH_SIZE)
    recorder.note("start")
    for epoch in range(options.epochs):
        begin = time.perf_counter()
        loss = train_epoch(graph, model, optimizer, loader)
        recorder.save(epoch, time.perf_counter() - begin, loss, model.module.state_dict())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
