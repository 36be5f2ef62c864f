"""Batches that are ready when they are needed: the wire is hidden behind the computing.

The plain loop asks, waits, computes, asks, waits. Here each machine keeps what it would ask for again and again, and
one thread asks for the next batch while this one is computed:

    neighbours   lists of in-neighbours: those of this machine's part, and of remote nodes as far as memory is given
    table        rows of features: this part's from the servers' shared memory, remote ones are kept as they come
    background   the one thread that draws and fetches
    loader       puts them together
    choice       whether a job can use it; settings: its options
    heap         memory that a batch frees is kept for the next

All of it is exact: features do not change while a model is trained, and neighbours are drawn from the same lists with
the same probabilities. See ``benchmarks/RESULTS.md`` for what each of them is worth.

Importing this package imports nothing: take what you need from its modules.
"""
