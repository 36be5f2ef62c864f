"""Train one DistEmbedding on two trainers with SparseAdam and save its rows in scripts/out/tensors/embedding.pt."""

import os

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding

BATCHES = [([0, 1], [2, 3]), ([0, 5], [2, 6]), ([0, 1], [2, 7]), ([0, 9], [2, 9])]  # row IDs for ranks 0 and 1


def uniform(shape, dtype):
    print("uniform", tuple(shape), "ran in a", os.environ["DGL_ROLE"], flush=True)
    return torch.empty(tuple(shape), dtype=dtype).uniform_(-1, 1)


def main():
    dgl.distributed.initialize("ip_config.txt")
    dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph("small")
    everyone = torch.arange(g.num_nodes())
    emb = DistEmbedding(len(everyone), 8, name="emb", init_func=uniform)
    optimizer = dgl.distributed.optim.SparseAdam([emb], lr=0.1)
    before = emb.weight[everyone]
    dist.barrier()
    for batch in BATCHES:
        optimizer.zero_grad()
        (emb(torch.tensor(batch[dist.get_rank()])) ** 2).sum().backward()
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save((before, emb.weight[everyone]), "scripts/out/tensors/embedding.pt")
    print(f"rank {dist.get_rank()} took {len(BATCHES)} steps", flush=True)


if __name__ == "__main__":
    main()
