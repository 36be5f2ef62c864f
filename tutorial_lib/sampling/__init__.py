"""Mini-batches of nodes and of edges.

    nodes, edges        loaders that sample when a batch is needed
    pipeline            a loader of nodes that samples and pulls batches ahead of their use
    neighbor_sampler    samples from adjacency on this machine, or asks the servers of other machines
    feature_cache       reads rows of this machine's part, and keeps rows of other machines
    prefetch            the thread that samples and pulls
    rpc                 requests to DGL's servers

The pipeline is exact. Features do not change during training, and neighbors are sampled from the same lists with the
same probabilities as by DGL. ``benchmarks/RESULTS.md`` measures the benefit of each technique.

This file imports nothing. Import names from the modules.
"""
