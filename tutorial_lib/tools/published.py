"""Published accuracies on the real ogbn-products, and their comparison with a run."""

from __future__ import annotations

from typing import Any

from rich.table import Table

# Mean and deviation of GraphSAGE with neighbor sampling: Hu et al. 2020 and the OGB leaderboard
PUBLISHED = {"valid accuracy": (0.9170, 0.0009), "test accuracy": (0.7870, 0.0036)}
PUBLISHED_NODES = 2_449_029


def is_published_graph(dataset: str, nodes: int) -> bool:
    """Return whether the published accuracies belong to a graph. A small graph in its format may have its name."""
    return dataset == "ogbn-products" and nodes == PUBLISHED_NODES


def beside_published(result: dict[str, Any], plus_minus: str = "±") -> list[tuple[str, str, str]]:
    """Return the name of each published accuracy, the accuracy of this run, and the published one, as texts."""
    ours = {"valid accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]}
    return [
        (name, f"{ours[name]:.4f}", f"{mean:.4f} {plus_minus} {deviation:.4f}")
        for name, (mean, deviation) in PUBLISHED.items()
    ]


def comparison_table(result: dict[str, Any]) -> Table | str:
    """Return a table that compares a run with the published accuracies, or a line for another graph."""
    name = result["dataset"]
    if not is_published_graph(name, sum(result["partition"]["nodes"])):
        what = "not the published graph" if name == "ogbn-products" else "not ogbn-products"
        return f"data:       {name}, {what}: no published accuracy belongs to it"
    table = Table("", "this run", "published, ten runs", title="Beside the published figures", title_justify="left")
    for row in beside_published(result, "+/-"):
        table.add_row(*row)
    return table
