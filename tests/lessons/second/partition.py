"""A second solution of the holes in ``partition.py``, which prefers loops and sets."""

import torch
import torch.distributed as dist


def edge_cut(src, dst, part_of):
    cut = [a != b for a, b in zip(part_of[src].tolist(), part_of[dst].tolist(), strict=True)]
    return sum(cut) / len(cut)


def count_halo_nodes(src, dst, part_of, parts):
    halo = [set() for _ in range(parts)]
    for node, owner, part in zip(src.tolist(), part_of[src].tolist(), part_of[dst].tolist(), strict=True):
        if owner != part:
            halo[part].add(node)
    return torch.tensor([len(nodes) for nodes in halo])


def imbalance(part_of, parts, weights):
    totals = [weights[part_of == part].sum().item() for part in range(parts)]
    return max(totals) * parts / sum(totals)


def stream_partition(indptr, indices, parts, order, previous=None):
    starts, neighbors, total = indptr.tolist(), indices.tolist(), len(order)
    found = dict(enumerate(previous.tolist())) if previous is not None else {}
    sizes = torch.zeros(parts, dtype=torch.int64)
    for node in order.tolist():
        shared = torch.zeros(parts, dtype=torch.int64)
        for other in neighbors[starts[node] : starts[node + 1]]:
            if other in found:
                shared[found[other]] += 1
        scores = shared * (total - parts * sizes)
        candidates = (scores == scores.max()).nonzero().flatten()
        found[node] = int(candidates[sizes[candidates].argmin()])
        sizes[found[node]] += 1
    return torch.tensor([found[node] for node in range(total)])


def renumber(part_of, parts):
    owned, ranges, first = [], [], 0
    for part in range(parts):
        owned.append((part_of == part).nonzero().flatten())
        ranges.append([first, first + len(owned[-1])])
        first += len(owned[-1])
    return torch.cat(owned), ranges


def find_owners(ranges, ids):
    ends = torch.tensor([end for _, end in ranges])
    parts = torch.searchsorted(ends, ids, right=True)
    return torch.where((ids < 0) | (parts == len(ranges)), -1, parts)


def expect_remote_rows(find_inputs, ids, part_of, part, batch_size):
    batches = len(ids) // batch_size
    remote = 0
    for k in range(batches):
        inputs = find_inputs(ids[k * batch_size : (k + 1) * batch_size])
        remote += (part_of[inputs] != part).sum().item()
    return remote, batches


def epoch_bytes(remote_rows, steps, width, parameters, overhead=0.0):
    both = sum(remote_rows)
    return [(1 + overhead) * (4 * width * rows + 8 * (both - rows) + 4 * parameters * steps) for rows in remote_rows]


def epoch_seconds(compute, received, mbit):
    return compute + max(size / (mbit * 125_000) for size in received)


def agree_on_steps(steps):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, steps)
    return min(everyone)
