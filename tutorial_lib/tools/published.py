"""Published accuracies on the real ogbn-products, and their comparison with a run."""

from typing import Any

# Mean and deviation of GraphSAGE with neighbor sampling: Hu et al. 2020 and the OGB leaderboard
PUBLISHED = {"valid accuracy": (0.9170, 0.0009), "test accuracy": (0.7870, 0.0036)}
PUBLISHED_NODES = 2_449_029


def is_published_graph(dataset: str, nodes: int) -> bool:
    """Return whether the published accuracies belong to a graph. A small graph in its format may have its name."""
    return dataset == "ogbn-products" and nodes == PUBLISHED_NODES


def beside_published(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name of each published accuracy, the accuracy of this run, and the published one, as texts."""
    ours = {"valid accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]}
    return [
        (name, f"{ours[name]:.4f}", f"{mean:.4f} ± {deviation:.4f}") for name, (mean, deviation) in PUBLISHED.items()
    ]
