"""Turn numbered edges into one file for each part, with one block in memory (lesson 17).

python own_graph.py TABLES OUT PARTS [BLOCK_BYTES] (OUT is a new folder)
"""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv


def assign_stream(chunks, num_nodes, parts, passes=1):
    """Assign nodes to parts while edges stream by, and return the part of each node, a uint8 array.

    For each edge ``(u, v)``, first u and then v takes a step, also in a self loop. In its step, a node counts one more
    neighbor in the part of the other node, if that node has a part. Then it joins or moves to the part with the largest
    score ``neighbors * (capacity - size)``. Here, ``neighbors`` is the number of neighbors that the node has counted in
    the part so far, ``size`` is the number of nodes in the part now (with the node itself, if it is there), and
    ``capacity`` is ``1.05 * num_nodes / parts``. If several parts have the largest score, the node chooses the smallest
    of them, and the first if several are equally small. A further pass reads the edges again and keeps the parts, sizes
    and counts. At the end, each node without an edge joins the smallest part, in the order of the IDs. The score is
    that of linear deterministic greedy (Stanton and Kliot, 2012, https://doi.org/10.1145/2339530.2339722).

    Args:
        chunks: ``.npy`` files with edges (E, 2), in the order of the stream. The memory holds one of them.
    """
    part_of, sizes = [-1] * num_nodes, [0] * parts
    counts = [[0] * parts for _ in range(num_nodes)]
    capacity = 1.05 * num_nodes / parts
    for chunk in chunks * passes:
        for u, v in np.load(chunk).tolist():
            for node, other in ((u, v), (v, u)):
                neighbors, old = counts[node], part_of[node]
                if part_of[other] >= 0:
                    neighbors[part_of[other]] += 1
                best = max(range(parts), key=lambda part: (neighbors[part] * (capacity - sizes[part]), -sizes[part]))
                if best != old:
                    sizes[best] += 1
                    part_of[node] = best
                    if old >= 0:
                        sizes[old] -= 1
    for node in range(num_nodes):
        if part_of[node] < 0:
            part_of[node] = sizes.index(min(sizes))
            sizes[part_of[node]] += 1
    return np.array(part_of, np.uint8)


def bucket_edges(chunks, part_of, parts, folder):
    """Write the edges in both directions to one file for each part. Return nothing.

    The edge (u, v) belongs to the part of its destination v, and its reverse (v, u) to the part of u. The file
    ``folder / f"{part}.edges"`` has int64 pairs without a header (``tofile``) in any order. A part without edges gets
    an empty file. Existing files are replaced.

    Args:
        chunks: ``.npy`` files with edges (E, 2). The memory holds one of them.
        part_of: part of each node.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((folder / f"{part}.edges").open("wb")) for part in range(parts)]
        for chunk in chunks:
            pairs = np.load(chunk)
            pairs = np.concatenate([pairs, pairs[:, ::-1]])
            owners = part_of[pairs[:, 1]]
            for part, file in enumerate(files):
                pairs[owners == part].tofile(file)


def read_bucket(path, num_nodes):
    """Return the edges of one part without duplicates, int64 (E, 2), sorted by destination and then by source.

    ``path`` is a file of ``bucket_edges``. The key ``destination * num_nodes + source`` is different for each edge.
    """
    pairs = np.fromfile(path, np.int64).reshape(-1, 2)
    keys = np.unique(pairs[:, 1] * num_nodes + pairs[:, 0])
    return np.stack([keys % num_nodes, keys // num_nodes], axis=1)


def name_predictions(ids, node_map, predictions, classes, path):
    """Write the CSV file ``path`` with the columns ``id`` and ``prediction``, and a row for each node in ``ids``.

    Args:
        ids: sorted IDs of the user, a ``pa.Array`` of strings.
        node_map: ``predictions[i]`` belongs to the node ``ids[node_map[i]]``. Array of shape (N,).
        predictions: class number of each node, array of shape (N,).
        classes: list with the name of each class.
    """
    names = np.empty(len(ids), object)
    names[node_map] = [classes[number] for number in predictions]
    csv.write_csv(pa.table({"id": ids, "prediction": pa.array(names, pa.string())}), path)


def main(tables, out, parts, block_bytes=1 << 18):
    """Read edges.csv and nodes.csv in a folder, and write chunks, the part of each node, and the edges of each part."""
    from own_ids import read_node_ids, write_chunks

    ids = read_node_ids(tables / "nodes.csv", block_bytes)
    (out / "chunks").mkdir(parents=True)
    chunks = write_chunks(tables / "edges.csv", ids, out / "chunks", block_bytes)
    part_of = assign_stream(chunks, len(ids), parts)
    np.save(out / "part_of.npy", part_of)
    bucket_edges(chunks, part_of, parts, out)
    print(f"{len(ids):,} nodes, {len(chunks)} chunks, nodes of each part: {np.bincount(part_of).tolist()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
