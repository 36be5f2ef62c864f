"""Partition tables with DGL's CSVDataset and partition_graph. Usage: partition_with_dgl.py TABLES OUT (lesson 17)."""

import sys

import dgl

dataset = dgl.data.CSVDataset(sys.argv[1], ndata_parser=lambda _: {}, edata_parser=lambda _: {}, verbose=False)
graph = dgl.to_bidirected(dataset[0])  # the reverse of each edge, without duplicates
dgl.distributed.partition_graph(graph, "own", 2, sys.argv[2], part_method="random")
