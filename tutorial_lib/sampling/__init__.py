"""Mini-batches of nodes and of edges. ``benchmarks/RESULTS.md`` measures the benefit of each technique."""
