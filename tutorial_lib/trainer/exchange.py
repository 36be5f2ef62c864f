"""Values from rank to rank, without pickle: safetensors for the tensors, JSON in its header for numbers and texts.

torch's ``gather_object`` and its like unpickle what arrives, so whoever can send to a rank could run code in it. Here a
value may be None, a bool, a number, a text, a tensor, or lists, tuples and dicts (with texts as keys) of those. What is
received has the same values bit for bit, with lists in place of tuples, and tensors on the CPU.

Without a process group, a process is alone: it is rank 0, and sends to itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor


def alone() -> bool:
    """Whether this process is in no process group."""
    return not dist.is_initialized()


def own_rank() -> int:
    """This process's rank; 0 where it is alone."""
    return 0 if alone() else dist.get_rank()


def barrier() -> None:
    """Wait for all ranks."""
    if not alone():
        dist.barrier()


def gather(value: Any, *, everywhere: bool = False) -> list[Any]:
    """On rank 0, or on every rank: the values of all ranks, in their order. On the others: an empty list.

    Raises:
        TypeError: a value that cannot be sent; it is named.
    """
    if alone():
        return [value]
    own = pack(value)
    lengths = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor(len(own)))
    own = torch.nn.functional.pad(own, (0, int(max(lengths)) - len(own)))  # gloo wants equal sizes
    parts = [torch.empty_like(own) for _ in lengths] if everywhere or own_rank() == 0 else []
    if everywhere:
        dist.all_gather(parts, own)
    else:
        dist.gather(own, parts or None, dst=0)
    return [unpack(part[: int(length)]) for part, length in zip(parts, lengths, strict=False)]


def all_gather(value: Any) -> list[Any]:
    """On every rank: the values of all ranks, in their order. Raises as ``gather``."""
    return gather(value, everywhere=True)


def broadcast(value: Any, source: int = 0) -> Any:
    """The value of the source, a rank, on every rank; what the others give is not looked at. Raises as ``gather``."""
    if alone():
        return value
    own = pack(value if own_rank() == source else None)
    length = torch.tensor(len(own))
    dist.broadcast(length, src=source)
    content = own if own_rank() == source else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(content, src=source)
    return unpack(content)


def gather_by_number(ids: Tensor, values: Tensor, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
    """On rank 0: what all ranks have about nodes or edges, in the data set's order. On the others: nothing, twice.

    Args:
        ids: int64 (M,) ids of this rank's nodes; of all ranks together, each at most once.
        values: (M,) one for each.
        numbers: int64 (N,), the data set's number of each id.

    Returns:
        The numbers, ascending, and the value of each.
    """
    parts = gather((ids, values)) or [(ids[:0], values[:0])]
    ids, values = (torch.cat([part[k] for part in parts]) for k in (0, 1))
    found = torch.from_numpy(np.asarray(numbers[ids.numpy()], dtype=np.int64))
    order = found.argsort()
    return found[order], values[order]


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Sum each number over all ranks, in double precision; without a process group, the numbers themselves."""
    total = torch.tensor(values, dtype=torch.float64)
    if not alone():
        dist.all_reduce(total)
    return total.tolist()


def accuracy(correct: float, count: float) -> float:
    """Share of correct answers; NaN where nothing was asked."""
    return correct / count if count else float("nan")


def pack(value: Any) -> Tensor:
    """The bytes of a value, uint8 (bytes,): a safetensors file. Raises as ``gather``."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(value, "the value", tensors))
    return torch.frombuffer(bytearray(save(tensors, {"value": text})), dtype=torch.uint8)


def unpack(content: Tensor) -> Any:
    """Inverse of ``pack``; runs no code from the content."""
    data = content.numpy().tobytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])  # the format: its length, it, the tensors
    return _rebuilt(json.loads(header["__metadata__"]["value"]), load(data))


def _plain(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold: a dict is {"dict": ...}, a tensor {"tensor": its number}."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{number}]", tensors) for number, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(item, f"{where}[{key!r}]", tensors) for key, item in value.items()}}
    name = f"a {type(value).__qualname__}"
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_complex():
            number = str(len(tensors))
            tensors[number] = value.detach().cpu().contiguous().clone()  # no two views of one memory
            return {"tensor": number}
        name = f"a {value.layout} tensor of {value.dtype}"
    raise TypeError(
        f"{where} is {name}, which ranks cannot send each other: only None, bools, numbers, texts, dense real tensors, "
        "and lists, tuples and dicts (with texts as keys) of those"
    )


def _rebuilt(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_rebuilt(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return {key: _rebuilt(item, tensors) for key, item in value["dict"].items()}
