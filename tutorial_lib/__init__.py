"""The runtime under the course: distributed GNN training with DGL on emulated or real machines."""

__version__ = "0.1.0"
