"""A data set cut into parts that DGL's servers load, with ID maps, a counted report and checksums.

The folder::

    NAME.json            DGL's description of the parts (``part_config``), paths relative to it
    part0/, part1/, ...  graph.dgl and fused_csc_sampling_graph.pt (GraphBolt), node and edge features
    node_map.npy         int64 (N,): original id of new node i    (DGL renumbers nodes part by part)
    edge_map.npy         int64 (E,): original id of new edge i; not of over 2**28 edges kept as pairs
    manifest.json        what it was made from, the report, size and SHA-256 of every file
    partition.log        what DGL and METIS printed, or what our own methods said

How it comes about::

    build.partition_dataset
      memory.choose_method              how much memory each method would need; auto: metis if it fits, or multilevel
      dgl.distributed.partition_graph   metis, and random, where DGL's way fits: cut and write in one call
      methods.assign                    elsewhere: the part of each node, by clustering and cut, or as a stream
      split.write_parts                 and the files, one part at a time
      report.count_partition            what the cut costs
      types                             the same for graphs with several types of nodes; those DGL cuts, always
      folder                            checksums; opening the folder again
"""

from tutorial_lib.partition.build import FORMAT_VERSION, dataset_description, partition_dataset
from tutorial_lib.partition.folder import Partition, load_partition_folder
from tutorial_lib.partition.memory import AUTO, METHODS, PREFERENCE, choose_method, parse_memory

__all__ = [
    "AUTO",
    "FORMAT_VERSION",
    "METHODS",
    "PREFERENCE",
    "Partition",
    "choose_method",
    "dataset_description",
    "load_partition_folder",
    "parse_memory",
    "partition_dataset",
]
