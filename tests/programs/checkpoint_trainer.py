"""A trainer for tests: ``checkpoint_trainer.py GRAPH FOLDER save|load STEPS`` learns two DistEmbeddings.

``save``: STEPS steps, a checkpoint, then STEPS more. ``load``: continues from the checkpoint with STEPS steps. Either
way it ends with an event that tells the sums of this machine's rows.
"""

import sys
from pathlib import Path

import dgl
import torch

from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.session import join, serve_if_server
from tutorial_lib.trainer.state import local_rows, stores_of


def steps(embeddings, sparse, dense, adam, session, first: int, count: int) -> None:
    n = session.graph.num_nodes()
    for step in range(first, first + count):
        torch.manual_seed(1000 * session.rank + step)
        nodes = torch.randint(n, (300,))
        loss = sum(dense(embedding(nodes)).pow(2).mean() for embedding in embeddings.values())
        for optimizer in (adam, *sparse):
            optimizer.zero_grad()
        loss.backward()
        for parameter in dense.parameters():
            torch.distributed.all_reduce(parameter.grad)
        for optimizer in (adam, *sparse):
            optimizer.step()


def main(graph: str, folder: str, mode: str, count: str) -> None:
    serve_if_server()
    with join(graph) as session:
        n = session.graph.num_nodes()
        policy = session.graph.get_node_partition_policy("_N")
        embeddings = {
            name: dgl.distributed.DistEmbedding(n, width, name=name, part_policy=policy)
            for name, width in [("users", 4), ("items", 4)]
        }
        everyone = session.split(torch.ones(n, dtype=torch.bool), even=False)
        for number, embedding in enumerate(embeddings.values(), start=1):
            embedding.weight[everyone] = torch.sin(everyone[:, None] * number + torch.arange(4.0))
        sparse = [
            dgl.distributed.optim.SparseAdam([embeddings["users"]], lr=0.05),
            dgl.distributed.optim.SparseAdagrad([embeddings["items"]], lr=0.05),
        ]
        torch.manual_seed(0)
        dense = torch.nn.Linear(4, 3)
        adam = torch.optim.Adam(dense.parameters(), lr=0.01)
        session.barrier()
        saved = {"embeddings": embeddings, "sparse_optimizers": sparse}
        done = 0
        if mode == "save":
            steps(embeddings, sparse, dense, adam, session, 0, int(count))
            done = int(count)
            Checkpoints(Path(folder), {"hidden_size": 4}).save(dense, adam, [{"epoch": 0}], last=True, **saved)
        else:
            sparse[0]._lr = 77.0  # comes back from the checkpoint
            for embedding in embeddings.values():
                embedding.weight[everyone] = torch.zeros(len(everyone), 4)
            session.barrier()
            assert Checkpoints(Path(folder), {}, resume=True).restore(dense, adam, **saved) == [{"epoch": 0}]
            done = int(count)
        steps(embeddings, sparse, dense, adam, session, done, int(count))
        session.barrier()
        sums = {name: rows.double().sum().item() for name, rows in local_rows(stores_of(embeddings, sparse)).items()}
        sums["dense"] = sum(parameter.double().sum().item() for parameter in dense.parameters())
        session.events.emit("sums", lr=sparse[0]._lr, **sums)


if __name__ == "__main__":
    main(*sys.argv[1:])
