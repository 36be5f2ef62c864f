"""A view of a table's rows outlives the table: prints its sum, and how often FILE is mapped then and later."""

import gc
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from row_support import Book, Rows

from tutorial_lib.batches.feature_cache import FeatureCache

file = Path(sys.argv[1])


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count(str(file))


tensor = Rows(torch.ones(50, 100), 10, 40, shared=file)
before = mapped()
table = FeatureCache(tensor, Book(10, 40), budget=4000)
rows = table.rows[3:5]
del table
gc.collect()
print(float(rows.sum()), mapped() - before)
del rows
gc.collect()
print(mapped() - before)
