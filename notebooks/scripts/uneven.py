"""Run the guide's epoch loop once with model.join() and once without. The program takes the options of train.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from sage import GraphSAGE
from train_before import arguments, batches, join_job, leave_job, load_subtensor, split


def loop(model, optimizer, g, ids, args, epoch):
    steps = 0
    for input_nodes, seeds, blocks in batches(g, ids, args, epoch):
        x, y = load_subtensor(g, seeds, input_nodes)
        loss = F.cross_entropy(model(blocks, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"epoch {epoch}: rank {dist.get_rank()} has {len(ids)} nodes and is through after {steps} steps", flush=True)


def main(args):
    g = join_job(args)
    ids = split(g)[0]
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(GraphSAGE(g.ndata["feat"].shape[1], args.hidden, 47))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    with model.join():  # the English page. train.py also copies Adam's state, which one epoch does not need
        loop(model, optimizer, g, ids, args, epoch=0)
    loop(model, optimizer, g, ids, args, epoch=1)  # the Korean page
    leave_job()


if __name__ == "__main__":
    main(arguments().parse_args())
