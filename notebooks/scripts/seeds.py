"""Seed all processes of a job with ``from seeds import seed_job``. Servers must import this module, too (lesson 10)."""

import os

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import rpc


class Seed(rpc.Request, rpc.Response):
    """An additional request. The server that receives the request seeds its generator and returns the request."""

    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        return self.value

    __setstate__ = __init__

    def process_request(self, server_state):  # noqa: ARG002
        """Seed the generator of the server, which calls this method."""
        dgl.seed(self.value)
        return self


rpc.register_service(20_001, Seed, Seed)  # the services of DGL use other numbers


def seed_job(seed):
    """Seed each rank and each server with a different number. The servers sample neighbors for other machines."""
    own = (seed * 1000 + dist.get_rank()) % 2**31  # DGL accepts a C int
    torch.manual_seed(own)  # dropout
    dgl.seed(own)  # neighbors
    if dist.get_rank() == 0 and os.environ.get("DGL_DIST_MODE") == "distributed":
        for server in range(rpc.get_num_server()):
            rpc.send_request(server, Seed((seed * 1000 + 500 + server) % 2**31))
            if rpc.recv_response(60_000) is None:  # milliseconds
                raise TimeoutError(f"DGL server {server} has not answered within a minute")
    dist.barrier()  # no rank sends a request before all servers are seeded
