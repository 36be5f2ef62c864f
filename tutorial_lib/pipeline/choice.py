"""Whether the batches of a job come from the pipeline or from DGL's loader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tutorial_lib.pipeline.loader import Pipeline

if TYPE_CHECKING:
    from tutorial_lib.training import TrainConfig


def pipeline_for(graph: Any, features: Any, labels: Any, config: TrainConfig) -> Pipeline | None:
    """The pipeline of this trainer; None where DGL's loader is asked for, or "auto" finds a reason for it.

    The reasons: sampler processes, which draw elsewhere; servers on other machines than the trainers.
    """
    if config.loader == "dgl":
        return None
    if config.loader == "auto" and int(os.environ.get("DGL_NUM_SAMPLER", 0)):
        return None
    if graph.local_partition is None:
        return None
    return Pipeline.of(
        graph,
        features,
        labels,
        budget=config.cache,
        hops=len(config.fanouts),
        depth=config.ahead,
        half=config.half_wire,
    )
