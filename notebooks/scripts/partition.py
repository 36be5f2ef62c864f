"""Judge a partition, create one, and model the bytes and seconds of an epoch (lesson 04)."""

import torch
import torch.distributed as dist


def edge_cut(src, dst, part_of):
    """Return the share of edges whose source and destination are in different parts, a float.

    ``src`` and ``dst`` contain the source and the destination of each edge, and ``part_of`` contains the part of each
    node. All three are int64 tensors.
    """
    crossing = part_of[src] != part_of[dst]
    return crossing.double().mean().item()


def count_halo_nodes(src, dst, part_of, parts):
    """Return the number of halo nodes of each part, an int64 tensor of shape (parts,).

    A halo node of a part belongs to another part and is the source of at least one edge whose destination belongs to
    the part. A node can be a halo node of several parts. Each part counts it once, even if it has several such edges.
    """
    crossing = part_of[src] != part_of[dst]
    pairs = src[crossing] * parts + part_of[dst[crossing]]
    return (pairs.unique() % parts).bincount(minlength=parts)


def imbalance(part_of, parts, weights):
    """Return the weight of the heaviest part divided by the mean weight of all parts, a float.

    The weight of a part is the sum over its nodes. ``weights`` contains one integer, float or Boolean per node, such as
    the in-degrees or the training mask. A part can be empty, and then its weight 0 is included in the mean.
    """
    totals = torch.zeros(parts, dtype=torch.float64)
    totals.index_add_(0, part_of, weights.double())
    return (totals.max() / totals.mean()).item()


def stream_partition(indptr, indices, parts, order, previous=None):
    """Assign each node to a part when it arrives (linear deterministic greedy).

    A node joins the part with the largest score ``neighbors * (N - parts * size)``. Here, ``neighbors`` is the number
    of its neighbors in the part, and ``size`` is the number of nodes that have joined the part in this pass. If several
    parts have the largest score, choose the smallest of them, and the first if several are equally small.

    Args:
        indptr, indices: adjacency (CSC). ``indices[indptr[v] : indptr[v + 1]]`` are the neighbors of node v.
        order: all nodes in the order in which they arrive, int64 tensor of shape (N,).
        previous: result of an earlier pass, or None. A neighbor that has not arrived in this pass still counts in its
            part of the earlier pass. Without an earlier pass, it does not count. Do not change this tensor.

    Returns:
        The part of each node, an int64 tensor of shape (N,).
    """
    part_of, sizes = torch.full((len(order),), -1), [0] * parts
    if previous is not None:
        part_of = previous.clone()
    for node in order.tolist():
        known = part_of[indices[indptr[node] : indptr[node + 1]]]
        neighbors = known[known >= 0].bincount(minlength=parts).tolist()
        scores = [count * (len(order) - parts * size) for count, size in zip(neighbors, sizes)]
        best = max(range(parts), key=lambda part: (scores[part], -sizes[part]))
        part_of[node] = best
        sizes[best] += 1
    return part_of


def renumber(part_of, parts):
    """Give the nodes of each part one range of new IDs, in the order of their original IDs.

    Return ``node_map``, an int64 tensor with the original ID of each new ID, and a list with a list ``[first, end]``
    for each part. The part owns the new IDs from ``first`` to ``end - 1``.
    """
    node_map = part_of.argsort(stable=True)
    ends = part_of.bincount(minlength=parts).cumsum(0).tolist()
    return node_map, [[first, end] for first, end in zip([0, *ends], ends)]


def find_owners(ranges, ids):
    """Return the part that owns each new ID in ``ids``, an int64 tensor, and -1 for an ID that no part owns.

    ``ranges`` is the list of ``renumber``.
    """
    owners = torch.full_like(ids, -1)
    for part, (first, end) in enumerate(ranges):
        owners[(ids >= first) & (ids < end)] = part
    return owners


def expect_remote_rows(find_inputs, ids, part_of, part, batch_size):
    """Return the number of remote rows that a rank reads in an epoch, and its number of batches.

    A row that two batches read counts twice.

    Args:
        find_inputs: function that returns the input nodes of a batch. Its argument is a tensor with the batch's seeds.
        ids: the training nodes of the rank in the order of the epoch. Omit a last batch that is not full.
        part_of: part of each node. All rows outside ``part``, the part on the machine of the rank, are remote.
    """
    remote = batches = 0
    for seeds in ids.split(batch_size):
        if len(seeds) == batch_size:
            remote += int((part_of[find_inputs(seeds)] != part).sum())
            batches += 1
    return remote, batches


def epoch_bytes(remote_rows, steps, width, parameters, overhead=0.0):
    """Return the bytes that each of two machines receives in an epoch, a list.

    ``remote_rows`` is a pair, one number per machine. A machine receives its remote rows (``width`` float32 each), and
    an ID (int64) for each row that the other machine requests. In each of the ``steps``, it also receives the gradients
    of the other rank, one float32 per parameter of the model. Multiply the sum by ``1 + overhead``.
    """
    first, second = remote_rows
    received = []
    for rows, requested in ((first, second), (second, first)):
        size = 4 * width * rows + 8 * requested + 4 * parameters * steps
        received.append((1 + overhead) * size)
    return received


def epoch_seconds(compute, received, mbit):
    """Return the seconds of an epoch on two machines that compute first and then receive.

    ``compute`` is the number of seconds without a limit of the bandwidth, ``received`` lists the bytes of both
    machines, and ``mbit`` is the bandwidth of each machine in megabits per second. Both machines receive at the same
    time, and the epoch ends when both have their bytes.
    """
    return compute + 8 * max(received) / (mbit * 1e6)


def agree_on_steps(steps):
    """Return the smallest ``steps`` of all ranks, an int, on every rank.

    Each rank passes its number of batches. ``dist.all_reduce(tensor, op=dist.ReduceOp.MIN)`` replaces a tensor by its
    minimum over all ranks.
    """
    fewest = torch.tensor(steps)
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    return int(fewest)
