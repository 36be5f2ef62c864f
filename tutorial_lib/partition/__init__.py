"""Partitions of a data set in the format that DGL's servers load, with ID maps, a counted report and checksums.

The folder::

    NAME.json            DGL's description of the parts (``part_config``) with relative paths
    part0/, part1/, ...  graph.dgl and fused_csc_sampling_graph.pt (GraphBolt), node and edge features
    node_map.npy         int64 array of shape (N,), the original ID of new node i
    edge_map.npy         int64 array of shape (E,), the original ID of new edge i
    manifest.json        the input, the report, and size and SHA-256 of every file

``assign`` decides which part a node goes to, ``writer`` writes the parts, ``report`` counts the cut, and ``folder``
opens and checks the result.
"""

from tutorial_lib.partition.assign import DEFAULT_METHOD, available_method
from tutorial_lib.partition.build import FORMAT_VERSION, dataset_description, partition_dataset
from tutorial_lib.partition.folder import Partition, load_partition_folder
from tutorial_lib.partition.memory import parse_memory
from tutorial_lib.partition.report import type_counts

__all__ = [
    "DEFAULT_METHOD",
    "FORMAT_VERSION",
    "Partition",
    "available_method",
    "dataset_description",
    "load_partition_folder",
    "parse_memory",
    "partition_dataset",
    "type_counts",
]
