"""Write the graph, the split and the parts of synthetic-products for the peers.

    python benchmarks/peers/prepare.py SCALE FOLDER

The parts are those that ``train`` uses, from KaMinPar. Node IDs are those of the data set.
"""

import json
import sys
from pathlib import Path

import torch

from tutorial_lib.job.source import DataSource


def main() -> None:
    """Write graph.pt (indptr, indices, feat, label, part and the masks), label.pt, and train-RANK.pt."""
    scale, folder = float(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    source = DataSource("synthetic-products", scale=scale)
    dataset = source.load()
    partition = source.partition(dataset, 2, lambda text: print(f"  {text}", flush=True))
    nodes, data = torch.from_numpy(partition.node_map), dataset.target_data
    part = torch.empty_like(nodes)
    part[nodes] = torch.repeat_interleave(torch.arange(2), torch.tensor(partition.report.nodes))
    indptr, indices, _ = dataset.graph.adj_tensors("csc")
    masks = {name: data[f"{name}_mask"].bool() for name in ("train", "val", "test")}
    tensors = {"feat": data["feat"], "label": data["label"].long(), "part": part, **masks}
    torch.save({"indptr": indptr, "indices": indices, **tensors}, folder / "graph.pt")
    torch.save(tensors["label"], folder / "label.pt")
    for rank in range(2):
        torch.save((masks["train"] & (part == rank)).nonzero().flatten(), folder / f"train-{rank}.pt")
    description = {"scale": scale, "part_config": str(partition.config), "report": vars(partition.report)}
    (folder / "config.json").write_text(json.dumps(description))  # the last file


if __name__ == "__main__":
    main()
