"""Partition a graph randomly into two parts with DGL's function. Usage: partition_with_dgl.py GRAPH OUT."""

import sys

import dgl

from tutorial_lib.data import load_dataset

graph = load_dataset(sys.argv[1]).graph
dgl.distributed.partition_graph(graph, "big", 2, sys.argv[2], part_method="random")
