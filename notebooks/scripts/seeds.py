"""Random numbers of a whole job: ``from seeds import seed_job``. A server must have imported this, too (lesson 10)."""

import os

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import rpc


class Seed(rpc.Request, rpc.Response):
    """A request of our own: the server that gets it seeds its generator, and sends it back."""

    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        return self.value

    __setstate__ = __init__

    def process_request(self, server_state):  # noqa: ARG002
        """Runs in the server."""
        dgl.seed(self.value)
        return self


rpc.register_service(20_001, Seed, Seed)  # DGL's own services have other numbers


def seed_job(seed):
    """Seed all ranks and all servers, which draw neighbors for other machines, each with a number of its own."""
    own = (seed * 1000 + dist.get_rank()) % 2**31  # DGL takes a C int
    torch.manual_seed(own)  # dropout
    dgl.seed(own)  # neighbors
    if dist.get_rank() == 0 and os.environ.get("DGL_DIST_MODE") == "distributed":
        for server in range(rpc.get_num_server()):
            rpc.send_request(server, Seed((seed * 1000 + 500 + server) % 2**31))
            if rpc.recv_response(60_000) is None:  # milliseconds
                raise TimeoutError(f"DGL server {server} has not answered within a minute")
    dist.barrier()  # nobody asks a server before it is seeded
