"""Select the device of a rank, join the process group, open the data set, create the model and train an epoch."""

import os
from contextlib import redirect_stdout

import dgl.graphbolt as gb
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from sage import GraphSAGE


def start(rank, world_size, init_method):
    """Join with NCCL if GraphBolt supports CUDA and each rank has a GPU, else with gloo. Return the GPU or the CPU."""
    cuda = hasattr(torch.ops.graphbolt, "set_max_uva_threads") and torch.cuda.device_count() >= world_size
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", init_method, rank=rank, world_size=world_size)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return device


def open_dataset(folder, device):
    """Open the preprocessed data set. For a GPU, pin the graph and the features in main memory."""
    with redirect_stdout(None):  # otherwise each rank prints "The dataset is already preprocessed."
        dataset = gb.OnDiskDataset(folder, force_preprocess=False).load()
    if device.type == "cuda":
        dataset.graph.pin_memory_()
        dataset.feature.pin_memory_()
    return dataset


def make_model(rank, dataset, args, device):
    """Return a model with the same weights on every rank. Dropout and sampled neighbors differ between the ranks."""
    torch.manual_seed(0)
    in_size = dataset.feature.size("node", None, "feat")[0]
    num_classes = dataset.tasks[0].metadata["num_classes"]
    model = GraphSAGE(in_size, args.hidden, num_classes, len(args.fanouts), args.dropout).to(device)
    torch.manual_seed(rank)
    gb.seed(rank)  # GraphBolt has a separate random generator
    return DistributedDataParallel(model)


def one_epoch(rank, model, optimizer, batches, steps, device):
    """Train on this rank's batches and return the sum of their losses and their seed nodes.

    steps: number of items of all ranks together in each step.
    """
    total_loss, seeds = torch.zeros((), device=device), []
    bar = tqdm(batches, total=len(steps), ncols=60, mininterval=1) if rank == 0 else batches
    model.train()
    with Join([model]):  # a rank without batches takes part in the collectives of the others
        for batch, of_all in zip(bar, steps):
            y_hat = model(batch.blocks, batch.node_features["feat"])
            loss = F.cross_entropy(y_hat, batch.labels, reduction="sum")
            optimizer.zero_grad()
            (loss * dist.get_world_size() / of_all).backward()  # DDP divides by the world size
            optimizer.step()
            total_loss += loss.detach()
            seeds += batch.seed_nodes.tolist()
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)  # Join equalizes the weights, but not the Adam state. Rank 0 has made every step
    optimizer.load_state_dict(state[0])
    return total_loss, seeds
