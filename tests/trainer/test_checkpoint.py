"""Checkpoints as files: a full disk, damage, other settings, optimizers, and the rows of embeddings."""

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_support import NO_ROWS, SETTINGS, flip_bit, load, make_epochs, save, train_small_model
from rank_functions import save_and_load

from support.processes import fix_openmp, fork
from tutorial_lib.errors import InputError
from tutorial_lib.trainer.checkpoint import CheckpointManager, TrainState
from tutorial_lib.trainer.manifest import (
    FileRecord,
    Manifest,
    check_same_settings,
    publish_checkpoint,
    read_checkpoint,
    remove_checkpoints,
)


def test_two_checkpoints_are_kept(tmp_path):
    """D16. The two newest checkpoints are kept, also if a resumed run saves the same epoch again."""
    for count in (1, 2, 2, 3):
        save(tmp_path, *train_small_model(), count)
        before = {"manifest-previous.json", f"epoch-000{count - 1}"} if count > 1 else set()
        assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", f"epoch-000{count}", *before}
        assert len(read_checkpoint(tmp_path).manifest.epochs) == count


def test_a_checkpoint_every_second_epoch_and_at_the_end(tmp_path):
    told = []
    manager = CheckpointManager(tmp_path, SETTINGS, every=2, emit=lambda kind, **fields: told.append((kind, fields)))
    for count in range(1, 6):
        manager.save(TrainState(make_epochs(count)), *train_small_model(), NO_ROWS, last=count == 5)
    assert told == [("checkpoint", {"epochs": count}) for count in (2, 4, 5)]


def test_mid_epoch_checkpoint_stores_step(tmp_path):
    """If its file is damaged, the beginning of the epoch is loaded."""
    model, optimizer = train_small_model()
    save(tmp_path, model, optimizer, 1)
    state = TrainState(make_epochs(1), step=7, loss_sum=0.1 + 0.2, examples=70, seconds=1.5)
    save(tmp_path, *train_small_model(steps=6), state)
    found = read_checkpoint(tmp_path)
    assert (found.folder.name, len(found.manifest.epochs), found.manifest.step) == ("epoch-0001-step-000007", 1, 7)
    assert load(tmp_path, model, optimizer) == state
    flip_bit(found.folder / "model.safetensors", -1)
    assert load(tmp_path, model, optimizer) == TrainState(make_epochs(1))
    save(tmp_path, model, optimizer, 2)
    assert {path.name for path in tmp_path.glob("epoch-*")} == {"epoch-0001", "epoch-0002"}


@pytest.fixture
def saved(tmp_path) -> Path:
    save(tmp_path, *train_small_model(), 1)
    return tmp_path


@pytest.fixture
def saved_twice(saved) -> Path:
    """``saved``, whose model has the weights after 3 steps, and a newer one, after 6."""
    save(saved, *train_small_model(steps=6), 2)
    return saved


def test_damaged_file_is_named(saved):
    model, manifest = saved / "epoch-0001" / "model.safetensors", saved / "manifest.json"
    for path in (model, model.with_name("optimizer.safetensors"), manifest):
        content = path.read_bytes()
        for position in (0.05, 0.5, 0.99):
            flip_bit(path, int(len(content) * position))
            with pytest.raises(InputError, match=f"(damaged|unusable) checkpoint: .*{path.name}"):
                read_checkpoint(saved)
            path.write_bytes(content)
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model\.safetensors has \d+ bytes, expected \d+"):
        read_checkpoint(saved)
    model.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        read_checkpoint(saved)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(InputError, match=r"manifest\.json has format 2, and this version reads format 4"):
        read_checkpoint(saved)
    manifest.unlink()
    with pytest.raises(InputError, match=r"there is no checkpoint .*manifest\.json"):
        read_checkpoint(saved)


@pytest.mark.parametrize(
    ("folder", "name"), [("../elsewhere", "model.safetensors"), ("epoch-0001", "../../options.json")]
)
def test_a_manifest_names_only_files_of_its_checkpoint(folder, name, tmp_path):
    publish_checkpoint(tmp_path, Manifest(folder, make_epochs(1), {}, {name: FileRecord(1, "")}))
    with pytest.raises(InputError, match="lists files that a checkpoint never has"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["epoch-0002/model.safetensors", "manifest.json", "missing"])
def test_damaged_checkpoint_loses_one_epoch(saved_twice, name):
    """D16. A run resumes from the newest intact checkpoint, which the next save does not replace."""
    if name == "missing":
        (saved_twice / "manifest.json").unlink()
    else:
        flip_bit(saved_twice / name, (saved_twice / name).stat().st_size // 2)
    found = read_checkpoint(saved_twice)
    assert (len(found.manifest.epochs), found.folder.name) == (1, "epoch-0001")
    assert str(saved_twice / ("manifest.json" if name == "missing" else name)) in found.damaged
    told = []
    model, optimizer = train_small_model(steps=0)
    load(saved_twice, model, optimizer, emit=lambda kind, **fields: told.append((kind, fields)))
    assert told == [("resumed", {"epochs": 1, "damaged": found.damaged})]
    assert torch.equal(model[0].weight, train_small_model(steps=3)[0][0].weight)
    save(saved_twice, model, optimizer, 2)
    assert read_checkpoint(saved_twice).damaged == ""
    flip_bit(saved_twice / "epoch-0002" / "model.safetensors", -5)
    assert len(read_checkpoint(saved_twice).manifest.epochs) == 1
    flip_bit(saved_twice / "epoch-0001" / "model.safetensors", -5)
    for read in (lambda: read_checkpoint(saved_twice), lambda: load(saved_twice, *train_small_model(steps=0))):
        with pytest.raises(InputError, match=r"epoch-0002/model.*; previous checkpoint: .*epoch-0001/model"):
            read()


def test_user_files_are_kept(saved_twice, tmp_path_factory):
    """Only files with exactly our names are removed. A folder is removed only if nothing else is in it."""
    shutil.copytree(saved_twice / "epoch-0002", saved_twice / "epoch-0002-best-keep")
    users = {".notes", ".model.safetensors", "epoch-0001/notes.txt", "epoch-0002-best-keep/model.safetensors"}
    for name in users:
        (saved_twice / name).write_text("mine")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "model.safetensors").write_text("mine")
    (saved_twice / "epoch-0007").symlink_to(elsewhere)
    (saved_twice / "epoch-0004").mkdir()  # of a process that was killed while it wrote
    save(saved_twice, *train_small_model(), 3)
    remove_checkpoints(saved_twice)
    assert len(read_checkpoint(saved_twice).manifest.epochs) == 3
    assert {name for name in users if (saved_twice / name).read_text() == "mine"} == users
    assert [path.name for path in (saved_twice / "epoch-0001").iterdir()] == ["notes.txt"]
    assert not (saved_twice / "epoch-0004").exists()
    assert (elsewhere / "model.safetensors").read_text() == "mine"


def test_files_are_synced_before_manifest(tmp_path, monkeypatch):
    """D16. Every file and folder is flushed with fsync before the manifest replaces the previous one."""
    told = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(number: int) -> None:
        fsync(number)
        told.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)

    def recorded_replace(path: Path, target: Path) -> Path:
        told.append(f"-> {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    checkpoint = tmp_path / "checkpoint"
    save(checkpoint, *train_small_model(), 1)
    files = [[f"{name}.safetensors", "epoch-0001", "checkpoint"] for name in ("model", "optimizer")]
    temporary = told[6]
    assert temporary.startswith(".manifest.json.")
    assert told == [*files[0], *files[1], temporary, "-> manifest.json", "checkpoint"]


def run_ranks(mode: str, *folders: Path) -> list[list[str]]:
    """Return what two ranks, each on a machine with its own checkpoint folder, report about each load."""
    return fork(fix_openmp(save_and_load), 2, (mode, folders), backend="gloo", threads=1, timeout=60)


def test_damage_on_one_machine_affects_all_ranks(tmp_path):
    """D16. All ranks load the newest checkpoint that is intact on all machines. Only machine 1 sees the damage."""
    folders = [tmp_path / f"machine-{k}" for k in (0, 1)]
    first, second = run_ranks("damage", *folders)
    assert not (folders[0] / "epoch-0002" / "embeddings-machine-1.safetensors").exists()
    assert not (folders[1] / "manifest.json").exists()
    rows = folders[1] / "epoch-0002" / "embeddings-machine-1.safetensors"
    damage = f"damaged checkpoint: {rows} has changed since it was written (checksum)"
    assert first == ["2 10.0", f"1 0.0 {damage}"]
    assert second == ["2 11.0", "1 1.0"]


def test_old_checkpoint_is_kept_until_new_manifest(tmp_path):
    """Rank 0 needs half a second for each manifest. The first trainer of each machine removes old checkpoints."""
    shared = tmp_path / "shared"
    run_ranks("slow", shared, shared)
    assert {path.name for path in shared.glob("epoch-*")} == {"epoch-0002", "epoch-0003"}


def test_different_settings_are_listed(saved):
    """D17. The error lists every setting that differs from the checkpoint, except the number of epochs."""
    found = read_checkpoint(saved).manifest.description
    check_same_settings(found, {**SETTINGS, "epochs": 30}, saved)
    words = r"hidden_size 8 in the checkpoint, 16 now; .*; machines None in the checkpoint, 2 now"
    with pytest.raises(InputError, match=words):
        check_same_settings(found, {"hidden_size": 16, "fanouts": [5, 10], "epochs": 3, "machines": 2}, saved)


@pytest.mark.parametrize(("limit", "file"), [(300, "model"), (1300, "optimizer")])
def test_previous_checkpoint_survives_failed_write(saved, limit, file):
    """Files may not grow beyond the limit, as on a full disk. The optimizer has more bytes than the model."""
    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(OSError, match=f"cannot write the checkpoint: .*{file}.safetensors") as caught:
            save(saved, *train_small_model(), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before
