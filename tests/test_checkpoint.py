"""Checkpoints as files: a full disk, damage, other settings, optimisers; and the rows of DistEmbeddings."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tutorial_lib.checkpoint import (
    Checkpoints,
    check_same_settings,
    read_checkpoint,
    remove_leftovers,
    restore,
    save,
)
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.job import JobPlan
from tutorial_lib.cluster.launch import Coordinator
from tutorial_lib.cluster.spec import write_ip_config
from tutorial_lib.errors import InputError
from tutorial_lib.optimizer_state import flatten_optimizer, unflatten_optimizer

TRAINER = Path(__file__).with_name("checkpoint_trainer.py")
SETTINGS = {"hidden_size": 8, "fanouts": [5, 5], "epochs": 3}


def trained(optimizer_class=torch.optim.Adam, steps: int = 3, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
    for _ in range(steps):
        train(model, optimizer)
    return model, optimizer


def train(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).pow(2).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"amsgrad": True, "betas": (0.8, 0.99)}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {}),
    ],
)
def test_training_goes_on_exactly_where_it_was(tmp_path, optimizer_class, options):
    model, optimizer = trained(optimizer_class, **options)
    save(tmp_path, model, optimizer, [{"epoch": 0, "loss": float("nan")}], SETTINGS)
    other, other_optimizer = trained(optimizer_class, steps=0, **options)
    other_optimizer.param_groups[0]["lr"] = 5.0
    assert [epoch["epoch"] for epoch in restore(tmp_path, other, other_optimizer)] == [0]
    for _ in range(3):
        train(model, optimizer)
        train(other, other_optimizer)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    tensors, numbers = flatten_optimizer(optimizer)
    assert unflatten_optimizer(tensors, json.loads(json.dumps(numbers)))["param_groups"] == numbers["param_groups"]


def test_the_one_before_goes_when_the_new_one_is_valid(tmp_path):
    model, optimizer = trained()
    for count in (1, 2, 3):
        save(tmp_path, model, optimizer, [{"epoch": k} for k in range(count)], SETTINGS)
        assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", f"epoch-000{count}"}
        assert len(read_checkpoint(tmp_path).epochs) == count


def test_a_file_that_another_rank_is_writing_is_left_alone(tmp_path):
    save(tmp_path, *trained(), [{"epoch": 0}], SETTINGS)
    (tmp_path / ".model.safetensors").write_text("half")
    save(tmp_path, *trained(), [{"epoch": 0}, {"epoch": 1}], SETTINGS)
    assert (tmp_path / ".model.safetensors").exists()


def test_a_checkpoint_every_second_epoch_and_at_the_end(tmp_path):
    model, optimizer = trained()
    told = []
    keeper = Checkpoints(tmp_path, SETTINGS, every=2, emit=lambda kind, **fields: told.append((kind, fields)))
    assert keeper.restore(model, optimizer) == []
    epochs = [{"epoch": k} for k in range(5)]
    for count in range(1, 6):
        keeper.save(model, optimizer, epochs[:count], last=count == 5)
    assert told == [("checkpoint", {"epochs": count}) for count in (2, 4, 5)]


@pytest.fixture
def saved(tmp_path) -> Path:
    save(tmp_path, *trained(), [{"epoch": 0}], SETTINGS)
    return tmp_path


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("position", [0.05, 0.5, 0.99])
def test_a_flipped_bit_anywhere_is_found_and_the_file_named(saved, name, position):
    path = saved / name if name == "manifest.json" else saved / "epoch-0001" / name
    flip_bit(path, int(path.stat().st_size * position))
    with pytest.raises(InputError, match=f"(damaged checkpoint: .*{name}|{name} has format)"):
        read_checkpoint(saved)


def test_a_short_or_missing_file_is_named(saved):
    path = saved / "epoch-0001" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model\.safetensors has \d+ bytes, expected \d+"):
        read_checkpoint(saved)
    path.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        read_checkpoint(saved)


def test_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match="no checkpoint in"):
        read_checkpoint(tmp_path)


def test_every_setting_that_differs_is_listed(saved):
    found = read_checkpoint(saved)
    check_same_settings(found, {**SETTINGS, "epochs": 30}, saved)
    with pytest.raises(InputError) as caught:
        check_same_settings(found, {"hidden_size": 16, "fanouts": [5, 10], "epochs": 3, "machines": 2}, saved)
    assert "hidden_size 8 in the checkpoint, 16 now; fanouts 5,5 in the checkpoint, 5,10 now" in str(caught.value)
    assert "machines None in the checkpoint, 2 now" in str(caught.value)


def test_nothing_is_unpickled(saved, monkeypatch):
    """Neither pickle nor torch.load is called."""

    def refuse(*_arguments, **_options):
        raise AssertionError("unpickled")

    for name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(name, refuse)
    restore(saved, *trained(steps=0))


SAVE_SECOND = """
import resource, sys
from pathlib import Path
from tutorial_lib.cluster.namespaces import CLONE_NEWNS, become_namespace_root, mount, unshare
folder, how = Path(sys.argv[2]), sys.argv[3]
if how == "disk":  # before torch starts its threads: a user namespace is for a process with one
    become_namespace_root()
    unshare(CLONE_NEWNS, "mounts")
    mount("tmpfs", str(folder), "tmpfs", 0, "size=32k", "mount")
sys.path.insert(0, sys.argv[1])
from test_checkpoint import SETTINGS, trained
from tutorial_lib.checkpoint import save
save(folder, *trained(), [{"epoch": 0}], SETTINGS)
before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
if how == "disk":
    (folder / "other").write_bytes(bytes(16000))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(how), int(how)))
try:
    save(folder, *trained(), [{"epoch": 0}, {"epoch": 1}], SETTINGS)
except OSError as error:
    print(f"{error.errno} {error}")
else:
    sys.exit("nothing failed")
(folder / "other").unlink(missing_ok=True)
assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before, list(folder.rglob("*"))
"""


@pytest.mark.parametrize(
    ("how", "code", "file"),
    [
        ("disk", errno.ENOSPC, "safetensors"),
        ("1000", errno.EFBIG, "model.safetensors"),
        ("1300", errno.EFBIG, "optimizer.safetensors"),
    ],
)
def test_the_checkpoint_before_survives_a_write_that_fails(tmp_path, emulation, how, code, file):
    """A disk that is really full; files that may not grow: during the weights, during the optimiser's tensors."""
    done = subprocess.run(
        [sys.executable, "-c", SAVE_SECOND, str(Path(__file__).parent), str(tmp_path), how],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{code} ")
    assert "cannot write the checkpoint" in done.stdout
    assert file in done.stdout


def test_a_crash_before_the_manifest_leaves_the_one_before(saved):
    """What a process leaves that is killed while it writes, in any state, is ignored, and removed on resuming."""
    half = saved / "epoch-0002"
    half.mkdir()
    save_file({"0.weight": torch.zeros(3)}, half / "model.safetensors")
    (saved / ".manifest.json.123").write_text('{"format": 1, "fol')
    found = read_checkpoint(saved)
    assert (len(found.epochs), found.folder.name) == (1, "epoch-0001")
    remove_leftovers(saved, keep=found.folder.name)
    assert {path.name for path in saved.iterdir()} == {"manifest.json", "epoch-0001"}
    restore(saved, *trained(steps=0))


@pytest.mark.cluster
@pytest.mark.long
def test_embeddings_and_their_optimizers_go_on_exactly(emulation, nothing_left, partition_of, tmp_path):
    """Two machines train two embeddings, save, and train on; a second job loads and reaches the same rows."""
    partition = partition_of(2)
    saved = run_embeddings(partition, tmp_path, "save")
    folder = tmp_path / "checkpoint" / "epoch-0001"
    shapes = [
        {name: tuple(rows.shape) for name, rows in load_file(folder / f"embeddings-machine-{k}.safetensors").items()}
        for k in (0, 1)
    ]
    assert len(shapes[0]) == 6  # two embeddings, three tensors of SparseAdam, one of SparseAdagrad
    for k in (0, 1):
        assert {rows for rows, *_ in shapes[k].values()} == {partition.report.nodes[k]}
    loaded = run_embeddings(partition, tmp_path, "load")
    assert len(saved) == 4
    for rank in saved:
        assert saved[rank]["lr"] == 0.05
        for name, value in saved[rank].items():
            assert loaded[rank][name] == pytest.approx(value, rel=1e-5, abs=1e-4), name
        assert saved[rank].keys() == loaded[rank].keys()


def run_embeddings(partition, tmp_path: Path, mode: str) -> dict[int, dict]:
    """Run ``checkpoint_trainer.py`` on two machines with two trainers each; what each rank told at the end."""
    cluster = EmulatedCluster(2)
    write_ip_config(tmp_path / "ip_config.txt", cluster.machines)
    plan = JobPlan(
        machines=cluster.machines,
        command=[sys.executable, str(TRAINER), partition.graph_name, str(tmp_path / "checkpoint"), mode, "3"],
        part_config=str(partition.config),
        ip_config=str(tmp_path / "ip_config.txt"),
        log_dir=str(tmp_path / f"logs-{mode}"),
        cwd=str(tmp_path),
        master_port=29500,
        trainers=2,
    )
    with cluster:
        coordinator = Coordinator(cluster, plan)
        coordinator.run()
    dropped = ("kind", "time", "rank", "local_rank", "machine")
    return {
        event["rank"]: {key: value for key, value in event.items() if key not in dropped}
        for event in coordinator.events
        if event["kind"] == "sums"
    }
