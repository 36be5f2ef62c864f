"""Train on one machine as in DGL's multi-GPU tutorial. Start with python scripts/ddp_tutorial.py RANKS PORT."""

import sys

import dgl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.metrics import accuracy_score
from torch.nn.parallel import DistributedDataParallel

from ddp_loader import OUT, create_dataloader, load_data
from ddp_utils import fix_openmp, prepare_mp
from sage import GraphSAGE


def init_model(rank, sizes, on_gpus):
    model = GraphSAGE(*sizes, num_layers=3, dropout=0.0)
    if not on_gpus:
        return DistributedDataParallel(model)
    return DistributedDataParallel(model.to(rank), device_ids=[rank], output_device=rank)


@fix_openmp
def train(rank, world_size, port, data):
    on_gpus = torch.cuda.device_count() >= world_size and "+cu" in dgl.__version__  # DGL from PyPI supports only CPUs
    backend, address = "nccl" if on_gpus else "gloo", f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend, init_method=address, world_size=world_size, rank=rank)
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(rank)
    dgl.seed(rank)
    graph, features, labels, train_nids, valid_nids, _test_nids = data
    model = init_model(rank, (features.shape[1], 128, int(labels.max()) + 1), on_gpus)
    optimizer, best = torch.optim.Adam(model.parameters()), 0.0

    def answers(model, inputs, seeds, blocks):
        return model([block.to(device) for block in blocks], features[inputs].to(device)), labels[seeds].to(device)

    for epoch in range(4):
        model.train()
        for step, batch in enumerate(create_dataloader(rank, world_size, graph, train_nids, 24)):
            scores, target = answers(model, *batch)
            loss = F.cross_entropy(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            accuracy = accuracy_score(target.cpu(), scores.argmax(1).cpu())
            if rank == 0 and step % 10 == 0:
                print(f"Epoch {epoch:05d} Step {step:05d} Loss {loss.item():.4f} Accuracy {accuracy:.2f}")
        dist.barrier()
        if rank == 0:
            model.eval()
            with torch.no_grad():
                found = [answers(model.module, *batch) for batch in create_dataloader(0, 1, graph, valid_nids, 1024)]
            scores, target = (torch.cat(parts) for parts in zip(*found, strict=True))
            accuracy = accuracy_score(target.cpu(), scores.argmax(1).cpu())
            print(f"Epoch {epoch} Validation Accuracy {accuracy:.4f}")
            if accuracy > best:
                best = accuracy
                torch.save(model.module.state_dict(), OUT / "tutorial.pt")
        dist.barrier()


if __name__ == "__main__":
    world_size, port = map(int, sys.argv[1:])
    data = load_data()
    prepare_mp(data[0])
    procs = [mp.Process(target=train, args=(rank, world_size, port, data)) for rank in range(world_size)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    print("exit codes", [p.exitcode for p in procs])
