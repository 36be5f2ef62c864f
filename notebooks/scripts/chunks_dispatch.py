"""Convert chunks to parts for DGL's servers. Usage: chunks_dispatch.py CHUNKS ASSIGNMENT OUT (lesson 15).

The memory holds one chunk or one part at a time, plus two numbers per node of the whole graph, the part and new ID.
"""

import json
import sys
from pathlib import Path

import dgl
import numpy as np
import torch
from dgl.data.utils import save_tensors

from part_files import node_rows, part_graph, read


def number_nodes(part_of, parts):
    """Return the new IDs, ordered by part and then by type, and the range of each type in each part."""
    new, ranges, end = {name: np.empty(len(of), np.int64) for name, of in part_of.items()}, {}, 0
    for part in range(parts):
        for name, of in part_of.items():
            mine = np.flatnonzero(of == part)
            first, end = end, end + len(mine)
            new[name][mine] = np.arange(first, end)
            ranges.setdefault(name, []).append([first, end])
    return new, ranges


def dispatch_edges(chunks, about, part_of, new, places):
    """Append each edge with new IDs to a file of the part that owns the destination, one chunk at a time."""
    for key, files in about["edges"].items():
        start, _, end = key.split(":")
        for src, dst in (read(chunks / file).T for file in files["data"]):
            pairs, owner = np.stack([new[start][src], new[end][dst]], axis=1), part_of[end][dst]
            for part, place in enumerate(places):
                with (place / f"{key}.edges").open("ab") as file:
                    pairs[owner == part].tofile(file)


def main(chunks, assignment, out):
    """Number the nodes, dispatch the edges, write one part after the other, and write the description as DGL does."""
    about = json.loads((chunks / "metadata.json").read_text())
    part_of = {name: np.loadtxt(assignment / f"{name}.txt", np.uint8, ndmin=1) for name in about["node_type"]}
    places = [out / f"part{part}" for part in range(1 + max(int(of.max()) for of in part_of.values()))]
    for place in places:
        place.mkdir(parents=True)
    new, ranges = number_nodes(part_of, len(places))
    dispatch_edges(chunks, about, part_of, new, places)
    del new
    config = {"graph_name": about["graph_name"], "num_parts": len(places), "part_method": "assigned", "halo_hops": 1}
    config |= {"num_nodes": sum(map(len, part_of.values())), "num_edges": sum(about["num_edges_per_type"])}
    config |= {"node_map": ranges, "edge_map": {key: [] for key in about["edge_type"]}}
    config["ntypes"] = {name: number for number, name in enumerate(about["node_type"])}
    config["etypes"] = {key: number for number, key in enumerate(about["edge_type"])}
    first_edge = 0
    for part, place in enumerate(places):
        files = [place / f"{key}.edges" for key in about["edge_type"]]
        graph, edge_ranges = part_graph(files, ranges, part, first_edge)
        for file, key, edge_range in zip(files, about["edge_type"], edge_ranges, strict=True):
            config["edge_map"][key].append(edge_range)
            first_edge = edge_range[1]
            file.unlink()
        dgl.save_graphs(str(place / "graph.dgl"), [graph])
        save_tensors(str(place / "node_feat.dgl"), node_rows(chunks, about, part_of, part))
        save_tensors(str(place / "edge_feat.dgl"), {})
        mine = {name: torch.from_numpy(np.flatnonzero(of == part)) for name, of in part_of.items()}
        save_tensors(str(place / "orig_nids.dgl"), mine)  # maps new IDs to the IDs of the chunks
        keys = {"part_graph": "graph", "node_feats": "node_feat", "edge_feats": "edge_feat"}
        config[f"part-{part}"] = {key: f"part{part}/{name}.dgl" for key, name in keys.items()}
    (out / f"{about['graph_name']}.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
