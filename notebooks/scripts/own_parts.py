"""Write the parts of own_graph.py for DGL's servers, with one part in memory (lesson 17).

python own_parts.py TABLES OUT PARTS (a new folder)
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from own_graph import read_bucket
from own_ids import collect_ids, number_ids, read_batches, read_node_ids
from part_files import write_part
from partition import renumber

SPLITS = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


def part_rows(path, features, ids, classes, new, first, end):
    """Return features, labels and masks of the nodes ``first`` to ``end - 1``. The table is read in blocks.

    ``new`` contains the new ID of each sorted ID. A node without a label has the label 0 and is in none of the masks.
    """
    rows = {"feat": np.empty((end - first, len(features)), np.float32), "label": np.zeros(end - first, np.int64)}
    rows |= {mask: np.zeros(end - first, np.uint8) for mask in SPLITS}
    for line, batch in read_batches(path, ["id", "label", "split", *features]):
        position = new[number_ids(ids, batch["id"], path, line)] - first
        mine = (position >= 0) & (position < end - first)
        label = pc.index_in(batch["label"], value_set=classes).fill_null(-1).to_numpy()[mine]
        if unknown := set(batch["split"].to_pylist()) - {None, *SPLITS.values()}:
            raise ValueError(f"{path}: the split {unknown.pop()!r} is none of {', '.join(SPLITS.values())}")
        split, position = np.array(batch["split"].to_pylist(), object)[mine], position[mine]
        rows["label"][position] = np.maximum(label, 0)
        for mask, word in SPLITS.items():
            rows[mask][position] = (split == word) & (label >= 0)
        for number, name in enumerate(features):
            try:
                rows["feat"][position, number] = batch[name].cast(pa.float32()).to_numpy()[mine]
            except pa.ArrowInvalid as error:
                where = f"{path}, lines {line} to {line + len(batch) - 1}"
                raise ValueError(f"{where}: a cell of {name!r} is empty or not a number") from error
    return {name: torch.from_numpy(values) for name, values in rows.items()}


def main(tables, out, folder):
    """Number the nodes part by part, write one part after the other, and write the description as DGL does."""
    nodes, part_of = tables / "nodes.csv", np.load(out / "part_of.npy")
    ids, classes, parts = read_node_ids(nodes), collect_ids(nodes, ["label"]), int(part_of.max()) + 1
    names = next(read_batches(nodes, []))[1].schema.names
    if missing := {"id", "label", "split"} - set(names):
        raise ValueError(f"{nodes} has no column {', '.join(sorted(missing))}")
    features = [name for name in names if name not in ("id", "label", "split")]
    node_map, ranges = renumber(torch.from_numpy(part_of), parts)  # lesson 04
    np.save(out / "node_map.npy", node_map.numpy())
    new = node_map.argsort().numpy()  # of each sorted ID
    config = {"graph_name": "own", "num_parts": parts, "part_method": "stream", "halo_hops": 1, "num_nodes": len(ids)}
    config |= {"ntypes": {"_N": 0}, "etypes": {"_N:_E:_N": 0}, "node_map": {"_N": ranges}}
    edge_ranges, end_edge = [], 0
    for part, (first, end) in enumerate(ranges):
        edges = new[read_bucket(out / f"{part}.edges", len(ids))]
        rows = part_rows(nodes, features, ids, classes, new, first, end)
        (folder / f"part{part}").mkdir(parents=True)
        first_edge, end_edge = end_edge, end_edge + len(edges)
        write_part(folder / f"part{part}", edges, first, end, first_edge, rows)
        files = {"part_graph": "graph", "node_feats": "node_feat", "edge_feats": "edge_feat"}
        config[f"part-{part}"] = {key: f"part{part}/{name}.dgl" for key, name in files.items()}
        edge_ranges.append([first_edge, end_edge])
    config |= {"num_edges": end_edge, "edge_map": {"_N:_E:_N": edge_ranges}}
    (folder / "own.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
