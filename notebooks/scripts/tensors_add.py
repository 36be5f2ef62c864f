"""Let two trainers add to the same rows, by themselves and through a function that runs in the server."""

import json

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistTensor, rpc

TIMES = 1000


class Done(rpc.Response):
    def __getstate__(self):
        return ("done",)

    def __setstate__(self, state):
        pass


class AddRows(rpc.Request):
    """Request that adds rows to the rows of a server."""

    def __init__(self, name, ids, rows):
        self.name, self.ids, self.rows = name, ids, rows

    def __getstate__(self):  # the values that are sent to the server
        return self.name, self.ids, self.rows

    def __setstate__(self, state):
        self.name, self.ids, self.rows = state

    def process_request(self, server_state):  # runs in the server, one request at a time
        store = server_state.kv_store
        ids = store.part_policy[self.name].to_local(self.ids)
        store.data_store[self.name].index_add_(0, ids, self.rows)
        return Done()


rpc.register_service(910_001, AddRows, Done)  # any ID that DGL does not use


def at_first_server(kind, tensor, ids, rows):
    """Send the rows of each machine to its first server and wait until the server has added them."""
    machines = tensor.part_policy.to_partid(ids)
    for machine in machines.unique().tolist():
        here = machines == machine
        request = kind(tensor.kvstore_key, ids[here], rows[here])
        rpc.send_request(machine * rpc.get_num_server_per_machine(), request)
        rpc.recv_response()


def main():
    dgl.distributed.initialize("ip_config.txt")
    dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph("small")
    total = DistTensor((g.num_nodes(), 1), torch.float32, name="total")
    one = torch.ones(1, 1)
    for _ in range(TIMES):
        total[[0]] += one
    for _ in range(TIMES):  # sends to a random server of the machine
        rpc.remote_call_to_machine([(0, AddRows(total.kvstore_key, torch.tensor([1]), one))])
    for _ in range(TIMES):
        at_first_server(AddRows, total, torch.tensor([2]), one)
    dist.barrier()
    if dist.get_rank() == 0:
        counts = dict(zip(("+=", "any server", "first server"), total[[0, 1, 2]].flatten().tolist(), strict=True))
        print(f"rank 0 of {dist.get_world_size()}: {counts}", flush=True)
        with open("scripts/out/tensors/add.json", "w") as file:
            json.dump(counts, file)


if __name__ == "__main__":
    main()
