"""Classes of nodes from their features: ``trainer.run`` on a job's ranks, ``training.train_single`` in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.tasks import check_one_type
from tutorial_lib.trainer import run
from tutorial_lib.training import train_single

__all__ = ["USES_FEATURES", "check", "run", "train_single"]

USES_FEATURES = True


def check(facts: Mapping[str, Any]) -> None:
    """See ``tasks.TaskModule``."""
    check_one_type(facts, "node")
    if not facts["num_features"]:
        raise InputError(
            f"{facts['name']}: --task node needs node features, and there are none",
            "For a graph without features: --task embedding.",
        )
