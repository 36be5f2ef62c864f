"""The checker of lesson 3 accepts correct functions and explains wrong ones."""

import math

import numpy as np
import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_03


def formula(values, fanout, *, correction=0, minus=1, root=0.5, rest=True):
    """The solution, with one thing changed."""
    d = len(values)
    f = fanout if 0 < fanout < d else d
    factor = (d - f) / (d - minus) if rest else 1.0
    return (values.var(correction=correction).item() / f * factor) ** root


def sampled(values, fanout):
    """Another correct answer, with NumPy."""
    count = len(values) if fanout < 0 else min(fanout, len(values))
    variance = np.var(values.numpy()) / count
    return math.sqrt(variance * (1 - (count - 1) / (len(values) - 1)))


test_right_answer, test_wrong_answer = answer_tests(
    lesson_03.check_standard_error,
    [solutions("03").standard_error, formula, sampled, lambda values, fanout: torch.tensor(formula(values, fanout))],
    {
        "stub": (lambda *_: None, "got       None"),
        "with replacement": (lambda values, fanout: formula(values, fanout, rest=False), "expected  1.7288"),
        "variance": (lambda values, fanout: formula(values, fanout, root=1), "Take the square root"),
        "divided by d - 1": (lambda values, fanout: formula(values, fanout, correction=1), "correction=0"),
        "another factor": (lambda values, fanout: formula(values, fanout, minus=0), "got"),
        "-1": (lambda values, f: formula(values, f) if f > 0 else math.nan, "-1\\)\n  got       nan"),
        "large fan-outs": (lambda values, f: formula(values, min(f, 19)) if f < 20 else 1.0, "has no error"),
        "raises": (lambda values, _fanout: values.no_such_thing(), "Your code raised AttributeError"),
    },
)
