"""Sample in-neighbors from adjacency lists on this machine, and through the DGL servers of other machines.

``send_requests`` does not wait, and ``receive_responses`` accepts responses in any order. DGL's RPC functions take
such a response for theirs, so never call them while a request is outstanding. Servers import this module first.

At the start, ``NeighborSampler`` copies the lists of its own part and, within a budget of bytes, the lists of the most
used remote nodes. The servers of other machines sample for all other remote nodes. The copied lists must not depend on
earlier batches. Otherwise a resumed run would lack them and sample other neighbors than an uninterrupted run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from dgl.distributed import DistGraph, GraphPartitionBook, rpc
from dgl.distributed.graph_services import SamplingRequest
from dgl.distributed.server_state import ServerState
from torch import Tensor

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.errors import NOTICE_SECONDS, retry_until_timeout

SAMPLE_SERVICE_ID = 770001  # DGL's own services use other numbers
RESPONSE_SECONDS = 120.0
NODES_PER_REQUEST = 8192
EDGES_AT_ONCE = 8 * 2**20
Value = TypeVar("Value")
AdjacencyChunks = list[tuple[Tensor, Tensor, Tensor]]  # int64 IDs or positions of nodes, neighbor counts, neighbors
Neighbors = tuple[Tensor, Tensor]  # in CSC format: int32 index pointer (D + 1,), int32 or int64 global node IDs (E,)
_arrived: dict[int, rpc.RPCMessage] = {}  # received before a caller waited for them, by sequence number


def send_requests(book: GraphPartitionBook, ids: Tensor, make: Callable[[Tensor], rpc.Request]) -> dict[int, Tensor]:
    """Send one request to each owner of the node IDs. Return the positions of its IDs by sequence number."""
    part_of = book.nid2partid(ids)
    positions = [(part, (part_of == part).nonzero().flatten()) for part in part_of.unique().tolist()]
    requests = [(part, make(ids[index])) for part, index in positions]
    sent = rpc.send_requests_to_machine(requests) if requests else {}
    return {number: positions[k][1] for number, k in sent.items()}


def receive_responses(sent: Mapping[int, Value], description: str) -> list[tuple[Value, rpc.Response]]:
    """Wait for the responses to numbered requests, two minutes for each. Return them with the values of ``sent``."""
    responses = []
    for count, (number, value) in enumerate(sent.items(), start=1):
        activity = f"{description}: response {count} of {len(sent)} from the DGL servers of other machines"
        for remaining in retry_until_timeout(activity, RESPONSE_SECONDS, pause=0):
            if number in _arrived:
                break
            message = rpc.recv_rpc_message(max(1, int(1000 * min(remaining, NOTICE_SECONDS))))  # 0 would wait forever
            if message is not None:
                _arrived[message.msg_seq] = message
        message = _arrived.pop(number)
        _, response_class = rpc.SERVICE_ID_TO_PROPERTY[message.service_id]
        responses.append((value, rpc.deserialize_from_payload(response_class, message.data, message.tensors)))
    return responses


@dataclass(eq=False)
class SampleRequest(rpc.Request, rpc.Response):
    """Request that seeds a server and samples in-neighbors of nodes of its part. The response has the same class."""

    seed: int  # of DGL's generators
    ids: Tensor | None = None  # int64 global IDs. Without them, the server only seeds its generators
    fanout: int = -1  # neighbors per node, or -1 for all
    sources: Tensor | None = None  # response: int32 or int64 global IDs of the neighbors, in the order of the nodes
    counts: Tensor | None = None  # response: int32 number of neighbors of each node

    def __getstate__(self) -> tuple[object, ...]:
        return tuple(vars(self).values())

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.__dict__.update(zip(self.__dataclass_fields__, state, strict=True))

    def process_request(self, server_state: ServerState) -> "SampleRequest":
        part, book = server_state.graph, server_state.partition_book
        dgl.seed(self.seed)
        if graphbolt := hasattr(part, "csc_indptr"):  # the format of the part
            dgl.graphbolt.seed(self.seed)
        if self.ids is None:
            return self
        indptr, indices, global_ids = in_edges(part)
        local = book.nid2localnid(self.ids, book.partid)
        begin = indptr[local].long()
        counts = indptr[local + 1].long() - begin
        if self.fanout < 0:  # DGL would return the neighbors of a node in another order
            neighbors = global_ids[indices[concatenate_ranges(begin, counts)].long()]
        else:
            sampling = SamplingRequest(self.ids, self.fanout, use_graphbolt=graphbolt)
            neighbors = sampling.process_request(server_state).global_src
            counts = counts.clamp(max=self.fanout)
        sources = neighbors.to(dtype_of_ids(int(neighbors.max()) if len(neighbors) else 0))
        return SampleRequest(self.seed, sources=sources, counts=counts.int())


rpc.register_service(SAMPLE_SERVICE_ID, SampleRequest, SampleRequest)


def in_edges(part: dgl.DGLGraph) -> tuple[Tensor, Tensor, Tensor]:
    """Return the in-edges of a part in memory: indptr, local IDs of the sources, and the global ID of each local ID."""
    if hasattr(part, "csc_indptr"):  # GraphBolt's format
        return part.csc_indptr, part.indices, part.node_attributes[dgl.NID]
    return (*part.adj_tensors("csc")[:2], part.ndata[dgl.NID])


def concatenate_ranges(begin: Tensor, count: Tensor) -> Tensor:
    """Return ``begin[k]`` to ``begin[k] + count[k] - 1`` for each k, concatenated, as int64."""
    shift = begin - (torch.cumsum(count, 0) - count)
    repeated = torch.from_numpy(np.repeat(shift.numpy(), count.numpy()))  # much faster than repeat_interleave
    return repeated.add_(torch.arange(len(repeated)))


def dtype_of_ids(largest: int) -> torch.dtype:
    """Return int32 if it holds this node ID, else int64."""
    return torch.int32 if largest <= torch.iinfo(torch.int32).max else torch.int64


class NeighborSampler:
    """Samples ``hops`` hops from a homogeneous ``DistGraph``, with ``budget`` bytes of adjacency of remote nodes."""

    def __init__(self, graph: DistGraph, budget: int, hops: int) -> None:
        self.book, n = graph.get_partition_book(), graph.num_nodes()
        ids = self.book.partid2nids(self.book.partid)
        self.local_range = range(int(ids[0]), int(ids[-1]) + 1) if len(ids) else range(0)
        self.dtype, self._seed, self._hop = dtype_of_ids(n), 0, 0
        self.scratch = torch.full((n,), -1, dtype=torch.int32)  # all -1 between calls. The feature cache shares it
        indptr, indices, global_ids = in_edges(graph.local_partition)
        indptr = indptr[: len(ids) + 1].long()
        sources = torch.empty(int(indptr[-1]), dtype=self.dtype)
        for i in range(0, len(sources), EDGES_AT_ONCE):  # int64 copies of all edges would double the peak
            sources[i : i + EDGES_AT_ONCE] = global_ids[indices[: len(sources)][i : i + EDGES_AT_ONCE].long()]
        lists = self._fetch_most_used(sources, hops - 1, budget)
        remote = torch.cat([ids[:0], *(node_ids for node_ids, _, _ in lists)]).sort().values
        positions = [(torch.searchsorted(remote, node_ids), counts, neighbors) for node_ids, counts, neighbors in lists]
        more_indptr, more_sources = self._merge(positions, len(remote))
        self._remote = torch.cat([remote, torch.tensor([2**63 - 1])])  # so that every search finds an entry
        self.remote_nodes, self.remote_bytes = len(remote), more_sources.nbytes
        self.indptr = torch.cat([indptr, indptr[-1] + more_indptr[1:]])
        self.sources = torch.cat([sources, more_sources]) if lists else sources
        wide = dtype_of_ids(max(n, len(self.sources)))
        csc = (self.indptr.to(wide), self.sources.to(wide), torch.empty(0, dtype=wide))  # without edge IDs
        sizes = {"node": n, "list": len(self.indptr) - 1}
        self._graph: dgl.DGLGraph = dgl.heterograph({("node", "in", "list"): ("csc", csc)}, sizes)

    def seed(self, seed: int) -> None:
        """Seed DGL's generator of the calling thread, and the next requests to servers of other machines."""
        dgl.seed(seed)
        self._seed, self._hop = seed, 0

    def sample(self, nodes: Tensor, fanout: int) -> Neighbors:
        """Return at most ``fanout`` in-neighbors of each distinct node, without replacement, or all if it is -1."""
        ids = nodes.long()
        lists = ids - self.local_range.start  # index of each list, or -1 if it is not on this machine
        remote = (lists < 0) | (lists >= len(self.local_range))
        if bool(remote.any()):
            pos = torch.searchsorted(self._remote, ids[remote])
            lists[remote] = torch.where(self._remote[pos] == ids[remote], len(self.local_range) + pos, -1)
        self._hop += 1
        local, absent = (mask.nonzero().flatten() for mask in (lists >= 0, lists < 0))
        if not len(absent):
            return self._sample_here(lists, fanout)
        seed = derive_seed(self._seed, self._hop)
        sent = send_requests(self.book, ids[absent], lambda part_ids: SampleRequest(seed, part_ids, fanout))
        indptr, sources = self._sample_here(lists[local], fanout)
        responses = [(absent[pos], r.counts, r.sources) for pos, r in receive_responses(sent, "sampled neighbors")]
        indptr, sources = self._merge([(local, indptr.diff(), sources), *responses], len(nodes))
        return indptr.int(), sources

    def compact(self, sources: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the IDs of all nodes of a hop, ``nodes`` first, and the int32 position of each source among them."""
        position = self.scratch
        position[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        new = torch.unique(sources[torch.index_select(position, 0, sources) < 0])
        all_nodes = torch.cat([nodes, new])
        position[new.long()] = torch.arange(len(nodes), len(all_nodes), dtype=torch.int32)
        indices = torch.index_select(position, 0, sources)
        position[all_nodes.long()] = -1
        return all_nodes, indices

    def _sample_here(self, lists: Tensor, fanout: int) -> Neighbors:
        begin = self.indptr[lists]
        counts = self.indptr[lists + 1] - begin
        if fanout < 0:
            sources = torch.index_select(self.sources, 0, concatenate_ranges(begin, counts))
        else:
            counts = counts.clamp(max=fanout)
            seeds = {"list": lists.to(self._graph.idtype)}
            sampled: dgl.DGLGraph = dgl.sampling.sample_neighbors(self._graph, seeds, fanout, _dist_training=True)
            sources = sampled.edges()[0].to(self.dtype)  # DGL keeps the order of the lists
        return F.pad(torch.cumsum(counts, 0), (1, 0)).int(), sources

    def _fetch_most_used(self, sources: Tensor, rounds: int, budget: int) -> AdjacencyChunks:
        """Return adjacency of remote nodes within ``budget`` bytes, the most used first, then of their neighbors."""
        lists = []
        present = torch.zeros(len(self.scratch), dtype=torch.bool)
        present[self.local_range.start : self.local_range.stop] = True
        for _ in range(rounds):
            uses = torch.bincount(sources, minlength=len(present)).masked_fill_(present, 0)
            candidates = uses.nonzero().flatten()
            candidates = candidates[uses[candidates].argsort(descending=True, stable=True)]
            present[candidates] = True
            num_before = len(lists)
            for ids in candidates.split(NODES_PER_REQUEST):
                if budget <= 0:
                    return lists
                sent = send_requests(self.book, ids, lambda part_ids: SampleRequest(0, part_ids))
                responses = receive_responses(sent, "neighbors of remote nodes")
                indptr, neighbors = self._merge([(at, r.counts, r.sources) for at, r in responses], len(ids))
                num_fitting = int((indptr[1:] * neighbors.element_size() <= budget).sum())
                lists.append((ids[:num_fitting], indptr.diff()[:num_fitting], neighbors[: int(indptr[num_fitting])]))
                budget = budget - lists[-1][2].nbytes if num_fitting == len(ids) else 0
            sources = torch.cat([sources[:0], *(neighbors for _, _, neighbors in lists[num_before:])])
        return lists

    def _merge(self, lists: AdjacencyChunks, n: int) -> tuple[Tensor, Tensor]:
        """Merge adjacency chunks by position. Return the int64 index pointer (n + 1,) and all sources."""
        counts = torch.zeros(n, dtype=torch.int64)
        for positions, num_neighbors, _ in lists:
            counts[positions] = num_neighbors.long()
        indptr = F.pad(torch.cumsum(counts, 0), (1, 0))
        sources = torch.empty(int(indptr[-1]), dtype=self.dtype)
        for positions, _, neighbors in lists:
            sources[concatenate_ranges(indptr[positions], counts[positions])] = neighbors.to(self.dtype)
        return indptr, sources
