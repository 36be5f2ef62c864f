"""The state of a torch optimiser as named tensors (for safetensors) and numbers (for JSON), and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A torch optimiser's state as named tensors and JSON: ``{"0/exp_avg": ...}`` and groups, other numbers."""
    state = optimizer.state_dict()
    tensors, others = {}, {}
    for index, values in state["state"].items():
        for key, value in values.items():
            (tensors if isinstance(value, Tensor) else others)[f"{index}/{key}"] = value
    return tensors, {"param_groups": state["param_groups"], "others": others}


def unflatten_optimizer(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of ``flatten_optimizer``; what ``load_state_dict`` takes. JSON has made tuples into lists."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **numbers["others"]}.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    groups = [
        {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
        for group in numbers["param_groups"]
    ]
    return {"state": state, "param_groups": groups}
