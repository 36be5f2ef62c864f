"""GraphBolt as a peer: two DDP ranks on one machine, each on its own core.

Both ranks map the same file, so the graph is in memory once. DGL's multi-GPU example loads the graph in a parent
that spawns the ranks, which takes 4 s longer. The training nodes are sorted by part, and each rank shuffles its own
half, so the ranks train the nodes of the two machines of the other systems.
"""

import os
import sys
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import torch
import torch.distributed as dist
import torch.nn.functional as F
from recording import BATCH_SIZE, CLASSES, DROPOUT, FANOUTS, HIDDEN, WIDTH, Recorder, parse_options, train

sys.path.append(str(Path(__file__).parents[1]))
from guide_loop import GraphSAGE

RANKS = 2


def main() -> None:
    """Train as one rank. RANK is set."""
    options, rank = parse_options(), int(os.environ["RANK"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    data = torch.load(str(options.data / "graph.pt"), mmap=True, weights_only=True)
    graph = gb.fused_csc_sampling_graph(data["indptr"], data["indices"])
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(data["feat"])})
    nodes = torch.cat([(data["train"] & (data["part"] == part)).nonzero().flatten() for part in range(RANKS)])
    items = gb.ItemSet((nodes, data["label"][nodes]), names=("seed_nodes", "labels"))
    dist.init_process_group("gloo", f"file://{options.out}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(options.seed)
    model = torch.nn.parallel.DistributedDataParallel(GraphSAGE(WIDTH, HIDDEN, CLASSES, len(FANOUTS), DROPOUT))
    torch.manual_seed(options.seed * 1000 + rank)
    dgl.seed(options.seed * 1000 + rank)
    gb.seed(options.seed * 1000 + rank)
    pipe = gb.DistributedItemSampler(items, batch_size=BATCH_SIZE, shuffle=True, drop_uneven_inputs=False)
    # GraphBolt takes the fan-outs from the outermost hop to the innermost, as DGL does.
    pipe = pipe.sample_neighbor(graph, FANOUTS).fetch_feature(features, node_feature_keys=["feat"])
    loader = gb.DataLoader(pipe, num_workers=0)

    def loss_of(batch) -> torch.Tensor:
        return F.cross_entropy(model(batch.blocks, batch.node_features["feat"]), batch.labels)

    train(Recorder(options.out, rank), options.epochs, model, loader, loss_of, model.module.state_dict)


if __name__ == "__main__":
    main()
