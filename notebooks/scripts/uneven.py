"""Run the epoch loop of DGL's guide with model.join() and then without (lesson 10), with the options of train.py."""

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from job import arguments, join_job, leave_job
from sage import GraphSAGE


def load_subtensor(g, seeds, input_nodes):
    return g.ndata["feat"][input_nodes], g.ndata["label"][seeds].long()


def loop(model, optimizer, g, ids, batch_size, epoch):
    sampler = dgl.dataloading.MultiLayerNeighborSampler([10, 10])
    loader = dgl.dataloading.DistNodeDataLoader(g, ids, sampler, batch_size=batch_size, shuffle=True)
    steps = 0
    for input_nodes, seeds, blocks in loader:
        x, y = load_subtensor(g, seeds, input_nodes)
        loss = F.cross_entropy(model(blocks, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"epoch {epoch}: rank {dist.get_rank()} has {len(ids)} nodes and has made {steps} steps", flush=True)


def main(args):
    g = join_job(args)
    ids = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(GraphSAGE(g.ndata["feat"].shape[1], args.hidden, 47))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    with model.join():  # as on the English page of the guide
        loop(model, optimizer, g, ids, args.batch_size, epoch=0)
    weight = next(model.parameters())
    steps = int(optimizer.state[weight]["step"])
    print(f"rank {dist.get_rank()}: weight {weight[0, 0]:.5f}, Adam has counted {steps} steps", flush=True)
    loop(model, optimizer, g, ids, args.batch_size, epoch=1)  # as on the Korean page
    leave_job()


if __name__ == "__main__":
    main(arguments().parse_args())
