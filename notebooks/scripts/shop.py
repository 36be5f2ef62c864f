"""Generate the tables of a shop with the traps of real tables: nodes.csv and edges.csv (lesson 17)."""

import numpy as np
import pyarrow as pa
from pyarrow import csv

CLASSES = ["audio", "books", "garden", "kitchen", "music", "paper", "sports", "toys"]


def write_shop(folder, num_nodes, num_edges, features=8, departments=80, seed=0):
    """Write products and pairs of products that were bought together.

    80 % of the pairs are in the same department, and a class has ten departments. All cells are quoted. The edges
    contain duplicates in both directions and self loops. The last product has no edge. 15 % of the products have no
    label, and a tenth of the others are in no set.
    """
    rng = np.random.default_rng(seed)
    codes = rng.choice(10**9, num_nodes, replace=False)
    ids = np.array(["007", "7", *(f"B{code:09d}" for code in codes[2:])], object)
    department = rng.integers(departments, size=num_nodes)
    label = department % len(CLASSES)
    order, sizes = department.argsort(kind="stable"), np.bincount(department)
    src, dst = rng.integers(num_nodes - 1, size=(2, num_edges))
    inside = order[sizes.cumsum()[department[src]] - 1 - (rng.random(num_edges) * sizes[department[src]]).astype(int)]
    inside = np.where(inside == num_nodes - 1, src, inside)  # the last product has no edge
    dst = np.where(rng.random(num_edges) < 0.8, inside, dst)
    dst[:5] = src[:5]  # self loops
    again = num_edges // 50
    src, dst = np.concatenate([src, dst[:again]]), np.concatenate([dst, src[:again]])  # duplicates
    splits = np.array(["train", "valid", "test", None], object)[rng.choice(4, num_nodes, p=[0.5, 0.2, 0.2, 0.1])]
    nodes = {"id": ids, "label": np.where(rng.random(num_nodes) < 0.15, None, np.array(CLASSES, object)[label])}
    noisy = np.eye(len(CLASSES), features)[label] + rng.normal(size=(num_nodes, features))
    nodes |= {"split": splits, **{f"f{k}": noisy[:, k].round(3) for k in range(features)}}
    folder.mkdir(parents=True)
    csv.write_csv(pa.table(nodes), folder / "nodes.csv")
    csv.write_csv(pa.table({"src": ids[src], "dst": ids[dst]}), folder / "edges.csv")
