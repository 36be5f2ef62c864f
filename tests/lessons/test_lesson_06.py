"""The checker of lesson 6 distinguishes right and wrong answers."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from solution_support import answer_tests, solutions
from torch import Tensor

from support.exercises import lesson_06

macro_accuracy = solutions("06").macro_accuracy


def _counts(predictions: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    right = torch.bincount(labels[predictions == labels], minlength=classes)
    return right, torch.bincount(labels, minlength=classes)


def _mean_of_means(predictions: Tensor, labels: Tensor, _classes: int) -> float:
    mean = torch.stack([(predictions[labels == k] == k).double().mean() for k in labels.unique()]).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def _from_sums(ratio: Callable[[Tensor, Tensor], Tensor], reduce: Callable[..., Any] = dist.all_reduce) -> Any:
    def answer(predictions: Tensor, labels: Tensor, classes: int) -> float:
        counts = torch.stack(_counts(predictions, labels, classes))
        reduce(counts)
        return ratio(*counts).item()

    return answer


WRONG = {
    "stub": (lambda *_: None, r"got       \[None, None, None\]"),
    "mean of means": (_mean_of_means, "got "),
    "not summed": (_from_sums(lambda r, n: (r[n > 0] / n[n > 0]).mean(), lambda _: None), "got "),
    "sums on one rank": (_from_sums(lambda r, n: (r[n > 0] / n[n > 0]).mean(), lambda x: dist.reduce(x, 0)), "got "),
    "over all nodes": (_from_sums(lambda r, n: r.sum() / n.sum()), "got "),
    "classes without a node": (_from_sums(lambda r, n: (r / n).mean()), "got (.|\n)*nan"),
    "counts a class without a node": (_from_sums(lambda r, n: (r / n.clamp(min=1)).mean()), "got "),
}

test_right, test_wrong = answer_tests(lesson_06.check_macro_accuracy, [macro_accuracy], WRONG)
