"""The exact accuracy of saved weights over all nodes and all neighbors, for the weights of every system.

    python benchmarks/peers/evaluate.py FOLDER RUN...

Each RUN has files weights-EPOCH.pt or weights-EPOCH.safetensors. The result is accuracy.json in the folder RUN.
A folder that has this file is skipped.
"""

import json
import sys
from pathlib import Path

import dgl
import torch
from safetensors.torch import load_file


class Evaluator:
    """Computes GraphSAGE-mean on the whole graph."""

    def __init__(self, folder: Path) -> None:
        self.data = torch.load(folder / "graph.pt", weights_only=True)
        indptr, indices = self.data["indptr"], self.data["indices"]
        self.graph = dgl.graph(("csc", (indptr, indices, torch.tensor([], dtype=torch.int64))))
        self.first = self.mean(self.data["feat"])  # the same for all weights

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean row over the neighbors of each node."""
        with self.graph.local_scope():
            self.graph.ndata["x"] = x
            self.graph.update_all(dgl.function.copy_u("x", "m"), dgl.function.mean("m", "y"))
            return self.graph.ndata["y"]

    @torch.no_grad()
    def accuracies(self, weights: dict[str, torch.Tensor]) -> list[float]:
        """Return the accuracies over the validation and the test nodes."""
        depth, x = len({name.split(".")[1] for name in weights}), self.data["feat"]
        for layer in range(depth):
            own, neighbors, bias = (
                weights[f"layers.{layer}.{name}"] for name in ("fc_self.weight", "fc_neigh.weight", "fc_self.bias")
            )
            if layer == 0:
                message = self.first @ neighbors.T
            elif layer == depth - 1:  # the mean of shorter rows is cheaper, and equal up to rounding
                message = self.mean(x @ neighbors.T)
            else:
                message = self.mean(x) @ neighbors.T
            x = x @ own.T + bias + message
            x = x if layer == depth - 1 else x.relu()
        correct = x.argmax(1) == self.data["label"]
        return [correct[self.data[mask]].float().mean().item() for mask in ("val", "test")]


def epoch_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def main() -> None:
    """Evaluate the weights of every epoch in the given runs."""
    evaluator = Evaluator(Path(sys.argv[1]))
    for run in map(Path, sys.argv[2:]):
        if (run / "accuracy.json").exists():
            continue
        files = sorted(run.glob("weights-*"), key=epoch_of)
        load = {".pt": torch.load, ".safetensors": load_file}
        found = {epoch_of(file): evaluator.accuracies(load[file.suffix](file)) for file in files}
        (run / "accuracy.json").write_text(json.dumps(found))
        best = max(found.items(), key=lambda pair: pair[1][0], default=None)
        print(f"  {run.name}: best epoch {best}", flush=True)


if __name__ == "__main__":
    main()
