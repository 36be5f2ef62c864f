"""Start the DGL server of part 0 alone, and ask it for neighbors and features of nodes that it owns.

    python benchmarks/one_server.py FOLDER_OF_A_PARTITION

To see that a part of a graph that no machine here could hold is one that DGL serves: how long loading it takes, how
much memory, and whether what comes back is right. The other parts' servers are not there, so there is no DistGraph,
which counts the rows of all of them: the requests are those that one sends, for nodes of part 0. Neighbors are
compared with the edges in the part's file, features with those in its file.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ASKED, FANOUT, LIMIT = 1000, 10, 900  # nodes, neighbors of each, seconds


def serve(config: Path) -> dict[str, float]:
    """The figures of one server, from its start to its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        ip_config = Path(folder) / "ip_config.txt"
        ip_config.write_text(f"127.0.0.1 {port}\n")
        both = {
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
                env=os.environ | both | {"DGL_ROLE": role, "DGL_SERVER_ID": "0"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for role in ("server", "client")
        )
        try:
            found, peak = (told(process.communicate(timeout=LIMIT)[0]) for process in (client, server))
        finally:
            for process in (server, client):
                process.kill()
                process.wait()
    return {"until_the_first_answer_s": round(found.pop("answered") - start, 1), **found, **peak}


def told(output: str) -> dict[str, float]:
    """What one of the two has printed as its figures, between lines of DGL's."""
    (line,) = (line for line in output.splitlines() if line.startswith("{"))
    return json.loads(line)


def be_server(ip_config: str, config: str) -> None:
    """Load part 0, answer until the client leaves, print the most memory held, shared memory included."""
    import dgl

    server = dgl.distributed.DistGraphServer(0, ip_config, 1, 1, config, graph_format=["csc"])
    server.start()
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM:"))
    print(json.dumps({"server_peak_gb": round(peak, 2)}), flush=True)


def be_client(ip_config: str, config: str) -> None:
    """Ask, compare with the files, print the figures."""
    import dgl
    import torch
    from dgl.data.utils import load_tensors
    from dgl.distributed import load_partition_book, rpc
    from dgl.distributed.graph_services import SamplingRequest
    from dgl.distributed.kvstore import get_kvstore

    about = json.loads(Path(config).read_text())
    dgl.distributed.initialize(ip_config)
    book = load_partition_book(config, 0)[0]
    store = get_kvstore()
    store.map_shared_data(book)
    first, end = about["node_map"]["_N"][0]
    nodes = torch.randint(first, end, (ASKED,), generator=torch.Generator().manual_seed(0)).unique()
    (answer,) = rpc.remote_call([(0, SamplingRequest(nodes, FANOUT))])
    rows = store.pull("node~_N~feat", nodes)
    answered = time.monotonic()
    part, *_ = dgl.load_graphs(str(Path(config).parent / about["part-0"]["part_graph"]))[0]
    ids = part.ndata[dgl.NID]
    sources, seeds = part.in_edges(nodes - first)
    there = set(zip(ids[sources].tolist(), ids[seeds].tolist(), strict=True))
    asked = list(zip(answer.global_src.tolist(), answer.global_dst.tolist(), strict=True))
    assert set(asked) <= there, "an edge that is not in the part"
    assert len(asked) == int(torch.bincount(seeds, minlength=int(nodes.max() - first) + 1).clamp(max=FANOUT).sum())
    features = load_tensors(str(Path(config).parent / about["part-0"]["node_feats"]))["_N/feat"]
    assert torch.equal(rows, features[nodes - first]), "features that are not those of the file"
    print(json.dumps({"answered": answered, "nodes": len(nodes), "edges": len(asked)}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        {"server": be_server, "client": be_client}[sys.argv[2]](os.environ["DGL_IP_CONFIG"], sys.argv[1])
    else:
        folder = Path(sys.argv[1])
        name = json.loads((folder / "manifest.json").read_text())["graph_name"]
        print(json.dumps(serve((folder / f"{name}.json").resolve())))
