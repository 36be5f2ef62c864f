"""Values from rank to rank, without pickle: JSON for the numbers and texts, safetensors for the tensors.

torch's ``gather_object`` and its like unpickle what arrives, so whoever can send to a rank could run code in it. Here a
value may be None, a bool, a number, a text, a tensor, or lists, tuples and dicts (with texts as keys) of those. What is
received has the same values bit for bit, with lists in place of tuples, and tensors on the CPU.

Without a process group, a process is alone: it sends to itself.
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

LENGTH = 8  # bytes, in front of the JSON


def gather(value: Any) -> list[Any]:
    """On rank 0: the values of all ranks, in their order. On the others: an empty list.

    Raises:
        TypeError: a value that cannot be sent; it is named.
    """
    if not _in_group():
        return [value]
    own, lengths = _announced(value)
    first = dist.get_rank() == 0
    parts = [torch.empty_like(own) for _ in lengths] if first else None
    dist.gather(own, parts, dst=0)
    return _unpadded(parts, lengths) if parts else []


def all_gather(value: Any) -> list[Any]:
    """On every rank: the values of all ranks, in their order. Raises as ``gather``."""
    if not _in_group():
        return [value]
    own, lengths = _announced(value)
    parts = [torch.empty_like(own) for _ in lengths]
    dist.all_gather(parts, own)
    return _unpadded(parts, lengths)


def broadcast(value: Any) -> Any:
    """Rank 0's value on every rank; what the others give is not looked at. Raises as ``gather``."""
    if not _in_group():
        return value
    first = dist.get_rank() == 0
    own = pack(value) if first else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor(len(own))
    dist.broadcast(length, src=0)
    if not first:
        own = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(own, src=0)
    return unpack(own)


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
    if _in_group():
        dist.all_reduce(total)
    return total.tolist()


def accuracy(correct: float, count: float) -> float:
    """Share of correct answers; NaN where nothing was asked."""
    return correct / count if count else float("nan")


def pack(value: Any) -> Tensor:
    """The bytes of a value, uint8 (bytes,). Raises as ``gather``."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(value, "the value", tensors)).encode()
    content = bytearray(len(text).to_bytes(LENGTH, "little") + text)
    if tensors:
        content += save(tensors)
    return torch.frombuffer(content, dtype=torch.uint8)


def unpack(content: Tensor) -> Any:
    """Inverse of ``pack``; runs no code from the content."""
    data = content.numpy()
    end = LENGTH + int.from_bytes(data[:LENGTH].tobytes(), "little")
    tensors = load(data[end:].tobytes()) if len(data) > end else {}
    return _rebuilt(json.loads(data[LENGTH:end].tobytes()), tensors)


def _plain(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold: a dict is {"dict": ...}, a tensor {"tensor": its number}."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{number}]", tensors) for number, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(item, f"{where}[{key!r}]", tensors) for key, item in value.items()}}
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_complex():
        number = str(len(tensors))
        tensors[number] = value.detach().cpu().contiguous().clone()  # safetensors takes no two views of one memory
        return {"tensor": number}
    name = f"a {value.layout} tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__qualname__}"
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


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _announced(value: Any) -> tuple[Tensor, list[int]]:
    """The bytes of this rank's value, filled up to the longest of all ranks, and the lengths of all."""
    own = pack(value)
    lengths = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor(len(own)))
    sizes = [int(length) for length in lengths]
    return torch.nn.functional.pad(own, (0, max(sizes) - len(own))), sizes


def _unpadded(parts: list[Tensor], lengths: list[int]) -> list[Any]:
    return [unpack(part[:length]) for part, length in zip(parts, lengths, strict=True)]
