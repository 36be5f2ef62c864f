"""Lesson 10: train.py has the results of one process, however it is started."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import launch, tutorial
from solution_support import NOTEBOOKS, copy_scripts

PIECES = ("job", "train", "node_task", "cache", "checkpoint", "predict")


def lines_of_code(source: str) -> int:
    """Count the lines without docstrings, blank lines, comments, imports and the function ``arguments``."""
    skipped = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", "") == "arguments":
            skipped |= set(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            skipped |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in skipped]
    return sum(bool(line) and not line.startswith("#") for line in lines)


@pytest.mark.parametrize("piece", PIECES)
def test_pieces_are_short_and_import_only_torch_dgl_and_pieces(piece):
    source = (NOTEBOOKS / "scripts" / f"{piece}.py").read_text()
    assert lines_of_code(source) <= 60
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.M))
    assert imported - set(sys.stdlib_module_names) <= {"torch", "dgl", "sage", "leave", "seeds", "ranks", *PIECES}


# One step over all training nodes, with all neighbors: the result does not depend on the number of ranks
EXACT = "--fanouts=-1,-1 --dropout 0 --batch_size 1000 --num_epochs 2 --hidden 16 --out result.json"


def train_words(part: Any, more: str = EXACT) -> list[str]:
    names = ["--graph_name", part.graph_name, "--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    return ["scripts/train.py", *names, *more.split()]


def check_result(folder: Path, expected: dict, ranks: int) -> None:
    result = json.loads((folder / "result.json").read_text())
    assert result["ranks"] == ranks
    for name in ("loss", "val_accuracy", "test_accuracy"):
        values = [[epoch[name] for epoch in each["epochs"]] for each in (result, expected)]
        torch.testing.assert_close(*values, atol=1e-4, rtol=0)


def run(*words: str, cwd: Path, **variables: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DGL_", "SLURM"))}
    environment = {**clean, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alone(partition_of, tmp_path_factory) -> dict:
    """The result of a single process."""
    folder = tmp_path_factory.mktemp("alone")
    copy_scripts(folder)
    run(sys.executable, *train_words(partition_of(1)), cwd=folder)
    return json.loads((folder / "result.json").read_text())


def test_alone(alone, small_dataset):
    """The first loss and the exact accuracies equal those of a model on the plain graph."""
    graph = small_dataset.graph
    expected = in_steps(NOTEBOOKS / "scripts", graph, [graph.ndata["train_mask"].nonzero().flatten()], 1000, 2)
    torch.testing.assert_close([epoch["loss"] for epoch in alone["epochs"]], expected, atol=1e-4, rtol=0)
    assert alone["test_accuracy"] == alone["epochs"][alone["best_epoch"]]["test_accuracy"]


def test_under_torchrun(scripts, partition_of, alone):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *train_words(partition_of(1))]
    run(sys.executable, *words, cwd=scripts.parent)
    check_result(scripts.parent, alone, 2)


@pytest.mark.cluster
def test_under_launch(scripts, emulation, nothing_left, partition_of, alone):
    command = shlex.join(["python3", *train_words(part := partition_of(2))])
    base = ["--part_config", str(part.config), "--ip_config", "ip_config.txt", "--num_omp_threads", "1"]
    done = launch("--emulate", "2", "--num_trainers", "2", *base, "--out", "logs", command, cwd=scripts.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    check_result(scripts.parent, alone, 4)


@pytest.fixture
def machines(scripts, emulation, nothing_left) -> Iterator[Path]:
    """A folder with ip_config.txt and scripts, on two persistent machines without a running job."""
    tutorial("machines", "start", "2", "--name", "lesson10", "--ttl", "5m")
    on = [("on", "--name", "lesson10", f"machine-{number}", "hostname", "-I") for number in range(2)]
    (scripts.parent / "ip_config.txt").write_text(
        "".join(f"{tutorial(*words).stdout.split()[0]} 30050\n" for words in on)
    )
    yield scripts.parent
    tutorial("machines", "stop", "lesson10")


def start(folder: Path, number: int, command: str) -> subprocess.Popen:
    """Start a command on a machine in the folder of the job, as ssh or srun would."""
    path = f"PATH={Path(sys.executable).parent}:$PATH; export PATH DGLBACKEND=pytorch HOME={folder} TMPDIR={folder}"
    words = ["on", "--name", "lesson10", f"machine-{number}", "sh", "-c", f"cd {folder}; {path}; {command}"]
    return subprocess.Popen([sys.executable, "-m", "tutorial_lib", *words], stdin=subprocess.DEVNULL)


def finish(processes: list[subprocess.Popen]) -> None:
    assert [process.wait(120) for process in processes] == [0] * len(processes)


@pytest.mark.cluster
def test_under_dgl_launch_tool(machines, partition_of, alone):
    """Execute the commands of DGL's tools/launch.py, which passes them to ssh."""
    part, hosts = partition_of(2), (machines / "ip_config.txt").read_text().split()[::2]
    both = f"DGL_NUM_SAMPLER=0 DGL_NUM_CLIENT=2 DGL_CONF_PATH={part.config} DGL_IP_CONFIG=ip_config.txt"
    both += " DGL_NUM_SERVER=1 DGL_GRAPH_FORMAT=csc OMP_NUM_THREADS=1"
    server = f"export DGL_ROLE=server DGL_KEEP_ALIVE=0 {both}"
    client = f"export DGL_DIST_MODE=distributed DGL_ROLE=client DGL_GROUP_ID=0 GLOO_SOCKET_IFNAME=eth0 {both}"
    tool = f"-m torch.distributed.run --nproc_per_node=1 --nnodes=2 --master_addr={hosts[0]} --master_port=1234"
    script = shlex.join(train_words(part))
    jobs = [start(machines, k, f"({server} DGL_SERVER_ID={k}; python3 {script})") for k in range(2)]
    jobs += [start(machines, k, f"({client}; python3 {tool} --node_rank={k} {script})") for k in range(2)]
    finish(jobs)
    check_result(machines, alone, 2)


@pytest.mark.cluster
def test_under_srun(machines, partition_of, alone):
    """A batch script starts the servers with one srun, and the trainers with another one, two on each node."""
    part, host = partition_of(2), (machines / "ip_config.txt").read_text().split()[0]
    both = "DGL_DIST_MODE=distributed DGL_NUM_SERVER=1 DGL_NUM_SAMPLER=0 DGL_NUM_CLIENT=4 OMP_NUM_THREADS=1"
    files = f"DGL_IP_CONFIG=ip_config.txt DGL_CONF_PATH={part.config}"
    master = f"MASTER_ADDR={host} MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 WORLD_SIZE=$SLURM_NTASKS RANK=$SLURM_PROCID"
    script = shlex.join(train_words(part))
    server = f"env {both} {files} DGL_ROLE=server DGL_SERVER_ID=$SLURM_NODEID python3 {script}"
    local = "LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE"
    trainer = f"env {both} {master} {local} python3 {script}"
    jobs = [start(machines, k, f"export SLURM_NODEID={k}; {server}") for k in range(2)]
    for rank in range(4):
        step = f"SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2 SLURM_PROCID={rank} SLURM_LOCALID={rank % 2}"
        jobs.append(start(machines, rank // 2, f"export {step}; {trainer}"))
    finish(jobs)
    check_result(machines, alone, 4)


SHARES = """
import json
from pathlib import Path

import torch.distributed as dist

from node_task import NodeTask
from train import main


class SavesShares(NodeTask):
    def load_data(self):
        super().load_data()
        Path(f"share-{dist.get_rank()}.json").write_text(json.dumps(self.ids["train"].tolist()))


if __name__ == "__main__":
    main(SavesShares)
"""


def in_steps(scripts: Path, graph: Any, shares: list[torch.Tensor], size: int, epochs: int) -> list[float]:
    """Return the losses of train.py on the plain graph. A step uses a part of each share, at most ``size`` nodes."""
    sys.path.insert(0, str(scripts))
    from sage import GraphSAGE

    labels, whole = graph.ndata["label"].long(), [dgl.to_block(graph, graph.nodes())] * 2
    known = graph.ndata["train_mask"].bool() | graph.ndata["val_mask"].bool()
    torch.manual_seed(0)
    model = GraphSAGE(graph.ndata["feat"].shape[1], 16, int(labels[known].max()) + 1, dropout=0)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    for epoch in range(epochs):
        total = 0.0
        steps = max(-(-len(share) // size) for share in shares)
        orders = [share[torch.randperm(len(share), generator=torch.Generator().manual_seed(epoch))] for share in shares]
        for parts in zip(*(order.tensor_split(steps) for order in orders), strict=True):
            loss = F.cross_entropy(model(whole, graph.ndata["feat"])[ids := torch.cat(parts)], labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(ids)
        found.append(total / sum(len(share) for share in shares))
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("samplers", [0, 1])
def test_uneven_ranks_do_not_change_losses(scripts, emulation, nothing_left, partition_of, small_dataset, samplers):
    """The ranks have 246, 246, 246 and 245 nodes. Sampler processes, if any, sample the batches."""
    (scripts / "shares.py").write_text(SHARES)
    part, options = partition_of(2), "--fanouts=-1,-1 --dropout 0 --hidden 16 --batch_size 49 --num_epochs 2"
    names = ["--graph_name", part.graph_name, "--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    command = shlex.join(["python3", "shares.py", *names, *options.split(), "--out", "job.json"])
    base = [*names[2:], "--num_omp_threads", "1", "--num_samplers", str(samplers), "--out", "logs"]
    done = launch("--emulate", "2", "--num_trainers", "2", *base, command, cwd=scripts)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [epoch["loss"] for epoch in json.loads((scripts / "job.json").read_text())["epochs"]]
    original = torch.from_numpy(np.load(part.folder / "node_map.npy"))
    shares = [original[json.loads((scripts / f"share-{rank}.json").read_text())] for rank in range(4)]
    assert sorted(map(len, shares)) == [245, 246, 246, 246]
    expected = in_steps(scripts, small_dataset.graph, shares, 49, 2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.cluster
def test_resumed_job_has_equal_losses_and_cached_rows(scripts, emulation, nothing_left, partition_of):
    """Two epochs, and then a resumed third one with a cache, have the losses of three epochs. Other settings fail."""
    part = partition_of(2)
    base = ["--part_config", str(part.config), "--ip_config", "ip_config.txt", "--num_omp_threads", "1"]
    common = "--hidden 16 --batch_size 100 --fanouts 5,5 --checkpoint checkpoint.pt --best best.pt"
    losses = []
    for number, more in enumerate(("--num_epochs 2", "--num_epochs 3 --cache 1000000", "--num_epochs 3")):
        if number == 2:
            (scripts.parent / "checkpoint.pt").unlink()
        command = shlex.join(["python3", *train_words(part, f"{common} {more} --out result.json")])
        done = launch("--emulate", "2", *base, "--out", f"logs-{number}", command, cwd=scripts.parent)
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((scripts.parent / "result.json").read_text())
        losses.append([epoch["loss"] for epoch in result["epochs"]])
        assert ("hit_rate" in result["epochs"][-1]) == (number == 1)
    assert losses[1] == losses[2]
    assert losses[0] == losses[1][:2]
    words = train_words(partition_of(1), f"{common} --num_epochs 4 --lr 0.5")
    done = subprocess.run([sys.executable, *words], cwd=scripts.parent, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "ValueError: lr is 0.5, and was 0.01, ranks is 1, and was 2" in done.stderr
