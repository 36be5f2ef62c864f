"""A plain DistDGL script: every trainer asks the servers for all edges of all nodes of its machine and counts them."""

import argparse

import dgl
import numpy as np
import torch as th


def main(args):
    dgl.distributed.initialize(args.ip_config, use_graphbolt=args.use_graphbolt)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    rank, book = th.distributed.get_rank(), g.get_partition_book()
    seeds = book.partid2nids(rank)
    block = dgl.distributed.sample_neighbors(g, seeds, -1, use_graphbolt=args.use_graphbolt)
    src, dst = block.edges()
    away = int((book.nid2partid(src) != rank).sum())
    labels = int(g.ndata["label"][src].sum())
    # A number that depends on which edges there are, by their original ends, and not on their order.
    original = th.from_numpy(np.load(args.node_map))
    mixed = int(((original[src] * 7919 + original[dst] * 104729) % 1000003).sum())
    print(f"rank {rank} edges {len(src)} away {away} labels {labels} mixed {mixed}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip_config")
    parser.add_argument("--part_config")
    parser.add_argument("--graph_name")
    parser.add_argument("--node_map")
    parser.add_argument("--use_graphbolt", action="store_true")
    main(parser.parse_args())
