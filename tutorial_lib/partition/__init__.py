"""Partitions of a data set in the format that DGL's servers load. A folder contains:

NAME.json            DGL's description of the parts (``part_config``) with relative paths
part0/, part1/, ...  graph.dgl and fused_csc_sampling_graph.pt (GraphBolt), node and edge features
node_map.npy         int64 (N,), the original ID of new node i. edge_map.npy: the same for edges
manifest.json        the input, the report, and size and SHA-256 of every file
"""

from tutorial_lib.partition.folder import Partition, dataset_description, load_partition_folder, partition_dataset

__all__ = ["Partition", "dataset_description", "load_partition_folder", "partition_dataset"]
