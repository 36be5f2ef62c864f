"""Ours as a peer: what the command ``train`` does, with a seed that does not change the graph.

    python benchmarks/peers/ours.py --data FOLDER --out FOLDER --epochs 20 --seed 1 MACHINES

MACHINES is the name of running emulated machines. ``train --seed`` would also generate another graph.
"""

import argparse
import json
from pathlib import Path

import tutorial_lib.tools.cli  # noqa: F401  the command imports it, too
from tutorial_lib.job.display import RunDisplay
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_distributed
from tutorial_lib.trainer.config import TrainConfig


def main() -> None:
    """Train on two machines. The results are in the folder ``run``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("machines")
    options = parser.parse_args()
    source = DataSource("synthetic-products", scale=json.loads((options.data / "config.json").read_text())["scale"])
    config = TrainConfig(epochs=options.epochs, learning_rate=0.003, seed=options.seed)
    run_distributed(source, Layout(on=options.machines), config, options.out / "run", RunDisplay(options.epochs))


if __name__ == "__main__":
    main()
