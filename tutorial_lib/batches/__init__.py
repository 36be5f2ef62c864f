"""Mini-batches: of nodes, of edges, of several types; and made ahead, so that the wire is hidden behind the computing.

    nodes, edges   DGL's sampler and loader for each of them, and which edges are learned
    pipeline       the same batches of nodes, ready when they are needed

The plain loop asks, waits, computes, asks, waits. In the pipeline each machine keeps what it would ask for again and
again, and one thread asks for the next batch while this one is computed:

    neighbours   lists of in-neighbours: those of this machine's part, and of remote nodes as far as memory is given
    table        rows of features: this part's from the servers' shared memory, remote ones are kept as they come
    service      how servers are asked, and how their answers come
    background   the one thread that draws and fetches

All of it is exact: features do not change while a model is trained, and neighbours are drawn from the same lists with
the same probabilities. See ``benchmarks/RESULTS.md`` for what each of them is worth.

Importing this package imports nothing: take what you need from its modules.
"""
