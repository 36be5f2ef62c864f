"""Start the DGL server of part 0 alone, and request neighbors and features of its nodes.

    python benchmarks/one_server.py FOLDER_OF_A_PARTITION

This script measures whether DGL can serve a part of a graph that does not fit on one machine. It measures the time and
the memory of loading, and compares the responses with the files of the part. The servers of the other parts do not run,
so the script sends the requests of a DistGraph itself.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NUM_NODES, FANOUT, TIMEOUT = 1000, 10, 900  # nodes, neighbors of each, seconds


def measure(config: Path) -> dict[str, float]:
    """Start a server and a client, and return their measurements."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        ip_config = Path(folder) / "ip_config.txt"
        ip_config.write_text(f"127.0.0.1 {port}\n")
        variables = {
            "DGL_DIST_MODE": "distributed",
            "DGL_IP_CONFIG": str(ip_config),
            "DGL_CONF_PATH": str(config),
            "DGL_NUM_SERVER": "1",
            "DGL_NUM_CLIENT": "1",
            "DGL_NUM_SAMPLER": "0",
            "DGL_GRAPH_FORMAT": "csc",
            "DGL_KEEP_ALIVE": "0",
        }
        start = time.monotonic()
        server, client = (
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(config), role],
                env=os.environ | variables | {"DGL_ROLE": role, "DGL_SERVER_ID": "0"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for role in ("server", "client")
        )
        try:
            responses, peak = (
                read_measurements(process.communicate(timeout=TIMEOUT)[0]) for process in (client, server)
            )
        finally:
            for process in (server, client):
                process.kill()
                process.wait()
    return {"until_the_first_answer_s": round(responses.pop("answered") - start, 1), **responses, **peak}


def read_measurements(output: str) -> dict[str, float]:
    """Return the measurements that the server or the client has printed between the lines of DGL."""
    (line,) = (line for line in output.splitlines() if line.startswith("{"))
    return json.loads(line)


def run_server(ip_config: str, config: str) -> None:
    """Load part 0, answer requests until the client exits, and print the peak memory, including shared memory."""
    import dgl

    server = dgl.distributed.DistGraphServer(0, ip_config, 1, 1, config, graph_format=["csc"])
    server.start()
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM:"))
    print(json.dumps({"server_peak_gb": round(peak, 2)}), flush=True)


def run_client(ip_config: str, config: str) -> None:
    """Send the requests, compare the responses with the files, and print the measurements."""
    import dgl
    import torch
    from dgl.data.utils import load_tensors
    from dgl.distributed import load_partition_book, rpc
    from dgl.distributed.graph_services import SamplingRequest
    from dgl.distributed.kvstore import get_kvstore

    description = json.loads(Path(config).read_text())
    dgl.distributed.initialize(ip_config)
    book = load_partition_book(config, 0)[0]
    store = get_kvstore()
    store.map_shared_data(book)
    first, end = description["node_map"]["_N"][0]
    nodes = torch.randint(first, end, (NUM_NODES,), generator=torch.Generator().manual_seed(0)).unique()
    (response,) = rpc.remote_call([(0, SamplingRequest(nodes, FANOUT))])
    rows = store.pull("node~_N~feat", nodes)
    answered = time.monotonic()
    part, *_ = dgl.load_graphs(str(Path(config).parent / description["part-0"]["part_graph"]))[0]
    ids = part.ndata[dgl.NID]
    sources, seeds = part.in_edges(nodes - first)
    edges = set(zip(ids[sources].tolist(), ids[seeds].tolist(), strict=True))
    sampled = list(zip(response.global_src.tolist(), response.global_dst.tolist(), strict=True))
    assert set(sampled) <= edges, "the response has an edge that is not in the part"
    assert len(sampled) == int(torch.bincount(seeds, minlength=int(nodes.max() - first) + 1).clamp(max=FANOUT).sum())
    features = load_tensors(str(Path(config).parent / description["part-0"]["node_feats"]))["_N/feat"]
    assert torch.equal(rows, features[nodes - first]), "the features differ from those in the file"
    print(json.dumps({"answered": answered, "nodes": len(nodes), "edges": len(sampled)}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        {"server": run_server, "client": run_client}[sys.argv[2]](os.environ["DGL_IP_CONFIG"], sys.argv[1])
    else:
        folder = Path(sys.argv[1])
        name = json.loads((folder / "manifest.json").read_text())["graph_name"]
        print(json.dumps(measure((folder / f"{name}.json").resolve())))
