"""What every server and trainer of ``python -m tutorial_lib train`` runs: ``python -m tutorial_lib.trainer CONFIG``.

CONFIG is a JSON file: ``train`` (a TrainConfig), ``partition`` (its folder), ``out`` (the run folder), ``device`` (see
``placement``), and of the checkpoints: ``description``, ``checkpoint_every``, ``resume`` (``checkpoint.Checkpoints``).
Rank 0 writes ``predictions.npy`` and ``checkpoint/`` there and sends the global results as events.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":  # the way to the first step is made of imports
    gc.disable()  # they make a quarter of a million objects and no garbage
    from tutorial_lib.session import serve_if_server

    serve_if_server()  # a server stays here until the job ends, and needs nothing of what follows

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.checkpoint import Checkpoints, export_weights
from tutorial_lib.evaluation import accuracy, layerwise_inference, sum_over_ranks
from tutorial_lib.exchange import gather
from tutorial_lib.models import GraphSAGE
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.pipeline.choice import pipeline_for
from tutorial_lib.pipeline.heap import keep_freed_memory
from tutorial_lib.pipeline.inference import layerwise_over_part
from tutorial_lib.pipeline.loader import Pipeline
from tutorial_lib.placement import settle
from tutorial_lib.session import Session, join
from tutorial_lib.steps import Pulse
from tutorial_lib.tasks import module_of
from tutorial_lib.training import EpochResult, Task, TrainConfig, TrainData, fit, node_task


def run(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
) -> None:
    """Train on this job's graph, evaluate exactly, and report.

    Raises:
        InputError: the ranks do not have the device that was asked for.
    """
    place = settle(device)
    own_part = session.graph.get_partition_book().partid
    partition = load_partition_folder(partition_folder, checksums=False, part=own_part)
    ndata = session.graph.ndata
    data = TrainData(
        session.graph,
        ndata["feat"],
        ndata["label"],
        session.split(ndata["train_mask"]),
        session.split(ndata["val_mask"]),
        place,
    )
    model = place.model(config, data.features.shape[1], partition.manifest["dataset"]["num_classes"])
    session.events.emit("placed", **place.describe())
    session.events.emit("split", train_nodes=len(data.train), val_nodes=len(data.val))
    pipeline = pipeline_for(data.graph, data.features, data.labels, config)
    learn(session, place.wrap(model), node_task(data, config, pipeline), config, checkpoints)
    if pipeline is not None:
        session.events.emit("kept", pipeline=pipeline.describe())
    evaluate(session, model, data, config, partition.node_map, out, pipeline)


def learn(
    session: Session,
    model: DistributedDataParallel,
    task: Task,
    config: TrainConfig,
    checkpoints: Checkpoints,
) -> None:
    """``fit`` as the ranks of a job do it, for every task: events, checkpoints, and the weights in a file."""

    def report(result: EpochResult) -> None:
        if session.rank == 0:
            session.events.emit("epoch", **asdict(result))

    if session.rank == 0:
        checkpoints.emit = session.events.emit
    fit(model, task, config, report, emit=session.events.emit, saver=checkpoints)
    if session.rank == 0:
        export_weights(model.module, config.to_dict(), checkpoints.folder)
        session.events.emit("evaluating")


def evaluate(
    session: Session,
    model: GraphSAGE,
    data: TrainData,
    config: TrainConfig,
    node_map: np.ndarray,
    out: Path,
    pipeline: Pipeline | None = None,
) -> None:
    """Predict every node over all its neighbours; each trainer does a share of its own machine's part.

    A row is written to the store by a trainer of the machine that holds it. Such a write has happened when the call
    returns; one to another machine has not, and no barrier tells when: a reader could still see zeros.
    """
    import dgl

    graph = session.graph
    n = graph.num_nodes()
    nodes = session.split(torch.ones(n, dtype=torch.bool), even=False)

    def new_store(depth: int, width: int) -> dgl.distributed.DistTensor:
        return dgl.distributed.DistTensor((n, width), torch.float32, name=f"inference-{depth}")

    pulse = Pulse(session.events.emit, "evaluation")
    common = (data.features, nodes, config.eval_batch_size, new_store, session.barrier, pulse, data.place)
    if pipeline is None:
        logits = layerwise_inference(model, graph, *common)
    else:
        logits = layerwise_over_part(model, pipeline.lists, *common, budget=config.cache)
    predictions = torch.cat([logits[part].argmax(1) for part in nodes.split(100_000)])
    right = predictions == data.labels[nodes]
    counts: list[float] = []
    for name in ("val_mask", "test_mask"):
        chosen = graph.ndata[name][nodes].bool()  # DGL returns masks as uint8, which would index instead of select
        counts += [float((right & chosen).sum()), float(chosen.sum())]
    val_right, val_count, test_right, test_count = sum_over_ranks(counts)
    gathered = gather((nodes, predictions))
    if session.rank == 0:
        original = np.empty(n, dtype=np.int64)
        for ids, values in gathered:
            original[node_map[ids.numpy()]] = values.numpy()
        np.save(out / "predictions.npy", original)
        session.events.emit(
            "evaluation",
            val_accuracy=accuracy(val_right, val_count),
            test_accuracy=accuracy(test_right, test_count),
        )
    session.barrier()


def main() -> None:
    """Train; what was started as a server has not come this far."""
    import torch._dynamo  # noqa: F401  torch's first optimizer would import it, with the collector on

    gc.enable()
    plan = json.loads(Path(sys.argv[1]).read_text())
    config = TrainConfig.from_dict(plan["train"])
    graph_name = json.loads((Path(plan["partition"]) / "manifest.json").read_text())["graph_name"]
    out = Path(plan["out"])
    checkpoints = Checkpoints(out / "checkpoint", plan["description"], plan["checkpoint_every"], plan["resume"])
    keep_freed_memory()
    with join(graph_name, seed=config.seed) as session:
        module_of(config.task).run(session, config, Path(plan["partition"]), out, checkpoints, plan["device"])


if __name__ == "__main__":
    main()
