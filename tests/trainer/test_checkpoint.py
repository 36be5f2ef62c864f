"""Checkpoints as files: a full disk, damage, other settings, optimisers; and the rows of DistEmbeddings."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoint_support import NO_ROWS, SETTINGS, epochs_of, flip_bit, load, save, train, trained
from rank_functions import saves_and_loads
from safetensors.torch import load_file, save_file

from support.processes import fix_openmp, fork
from tutorial_lib.errors import InputError
from tutorial_lib.trainer import manifest as manifests
from tutorial_lib.trainer.checkpoint import CheckpointManager, TrainState, export_weights
from tutorial_lib.trainer.manifest import Manifest, check_same_settings, read_checkpoint, remove_leftovers
from tutorial_lib.trainer.sparse_state import restore_settings

PROGRAMS = Path(__file__).parents[1] / "programs"


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
    save(tmp_path, model, optimizer, TrainState(epochs_of(1, loss=float("nan"))))
    other, other_optimizer = trained(optimizer_class, steps=0, **options)
    other_optimizer.param_groups[0]["lr"] = 5.0
    assert load(tmp_path, other, other_optimizer).epoch == 1
    for _ in range(3):
        train(model, optimizer)
        train(other, other_optimizer)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_two_are_kept_and_those_before_go_when_the_new_one_is_valid(tmp_path):
    model, optimizer = trained()
    for count in (1, 2, 3, 4):
        save(tmp_path, model, optimizer, count)
        before = {"manifest-previous.json", f"epoch-000{count - 1}"} if count > 1 else set()
        assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", f"epoch-000{count}", *before}
        assert len(read_checkpoint(tmp_path).manifest.epochs) == count


def test_a_file_that_another_rank_is_writing_is_left_alone(tmp_path):
    save(tmp_path, *trained(), 1)
    (tmp_path / ".model.safetensors").write_text("half")
    save(tmp_path, *trained(), 2)
    assert (tmp_path / ".model.safetensors").exists()


def test_a_checkpoint_every_second_epoch_and_at_the_end(tmp_path):
    model, optimizer = trained()
    told = []
    keeper = CheckpointManager(tmp_path, SETTINGS, every=2, emit=lambda kind, **fields: told.append((kind, fields)))
    assert keeper.load_latest(model, optimizer, NO_ROWS) == TrainState()
    for count in range(1, 6):
        keeper.save(TrainState(epochs_of(count)), model, optimizer, NO_ROWS, last=count == 5)
    assert told == [("checkpoint", {"epochs": count}) for count in (2, 4, 5)]


def test_the_middle_of_an_epoch_is_saved_as_a_number_of_steps(tmp_path):
    """If its file is damaged, the beginning of the epoch is loaded."""
    model, optimizer = trained()
    save(tmp_path, model, optimizer, 1)
    state = TrainState(epochs_of(1), step=7, loss_sum=0.1 + 0.2, examples=70, seconds=1.5)
    save(tmp_path, *trained(steps=6), state)
    found = read_checkpoint(tmp_path)
    assert (found.folder.name, len(found.manifest.epochs), found.manifest.step) == ("epoch-0001-step-000007", 1, 7)
    assert load(tmp_path, model, optimizer) == state
    flip_bit(found.folder / "model.safetensors", -1)
    assert load(tmp_path, model, optimizer) == TrainState(epochs_of(1))
    save(tmp_path, model, optimizer, 2)
    assert {path.name for path in tmp_path.glob("epoch-*")} == {"epoch-0001", "epoch-0002"}


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_an_earlier_version_is_refused_with_the_alternative(saved, version):
    content = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps({**content, "format": version}))
    with pytest.raises(InputError, match=f"another version of this program .format {version}") as caught:
        read_checkpoint(saved)
    assert "Start a new run without --resume" in str(caught.value.remedy)


@pytest.fixture
def saved(tmp_path) -> Path:
    save(tmp_path, *trained(), 1)
    return tmp_path


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("position", [0.05, 0.5, 0.99])
def test_a_flipped_bit_anywhere_is_found_and_the_file_named(saved, name, position):
    path = saved / name if name == "manifest.json" else saved / "epoch-0001" / name
    flip_bit(path, int(path.stat().st_size * position))
    with pytest.raises(InputError, match=f"(damaged checkpoint: .*{name}|{name} was written by another version)"):
        read_checkpoint(saved)


@pytest.fixture
def saved_twice(saved) -> Path:
    """``saved``, whose model has the weights after 3 steps, and a newer one, after 6."""
    save(saved, *trained(steps=6), 2)
    return saved


@pytest.mark.parametrize("name", ["epoch-0002/model.safetensors", "epoch-0002/optimizer.safetensors", "manifest.json"])
def test_a_flipped_bit_costs_one_epoch(saved_twice, name):
    """Resuming says so and takes the one before; the next save does not take that one's place."""
    flip_bit(saved_twice / name, (saved_twice / name).stat().st_size // 2)
    found = read_checkpoint(saved_twice)
    assert (len(found.manifest.epochs), found.folder.name) == (1, "epoch-0001")
    assert f"damaged checkpoint: {saved_twice / name} " in found.damaged
    told = []
    model, optimizer = trained(steps=0)
    keeper = CheckpointManager(
        saved_twice, SETTINGS, resume=True, emit=lambda kind, **fields: told.append((kind, fields))
    )
    assert keeper.load_latest(model, optimizer, NO_ROWS).epochs == epochs_of(1)
    assert told == [("resumed", {"epochs": 1, "damaged": found.damaged})]
    assert torch.equal(model[0].weight, trained(steps=3)[0][0].weight)
    save(saved_twice, model, optimizer, 2)
    assert read_checkpoint(saved_twice).damaged == ""
    flip_bit(saved_twice / "epoch-0002" / "model.safetensors", -5)
    assert len(read_checkpoint(saved_twice).manifest.epochs) == 1


def test_a_missing_manifest_costs_one_epoch_too(saved_twice):
    (saved_twice / "manifest.json").unlink()
    assert len(read_checkpoint(saved_twice).manifest.epochs) == 1


def test_two_damaged_ones_are_both_named(saved_twice):
    for epoch in (1, 2):
        flip_bit(saved_twice / f"epoch-000{epoch}" / "model.safetensors", -5)
    for read in (lambda: read_checkpoint(saved_twice), lambda: load(saved_twice, *trained(steps=0))):
        with pytest.raises(InputError, match=r"epoch-0002/model.*; and the one before it: .*epoch-0001/model"):
            read()


def test_what_the_user_keeps_there_stays(saved_twice, tmp_path_factory):
    """Only files with exactly our names are removed; a folder goes only when nothing else is in it."""
    shutil.copytree(saved_twice / "epoch-0002", saved_twice / "epoch-0002-best-keep")
    (saved_twice / ".notes").write_text("mine")
    (saved_twice / ".ipynb_checkpoints").mkdir()
    (saved_twice / ".model.safetensors.mine").write_text("mine")
    (saved_twice / "epoch-0001" / "notes.txt").write_text("mine")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "model.safetensors").write_text("mine")
    (saved_twice / "epoch-0007").symlink_to(elsewhere)
    save(saved_twice, *trained(), 3)
    remove_leftovers(saved_twice)
    assert len(read_checkpoint(saved_twice).manifest.epochs) == 3
    kept = {str(path.relative_to(saved_twice)) for path in saved_twice.rglob("*")} - {"epoch-0007"}
    ours = {f"epoch-000{k}/{name}.safetensors" for k in (2, 3) for name in ("model", "optimizer")}
    best = {f"epoch-0002-best-keep/{name}.safetensors" for name in ("model", "optimizer")}
    folders = {"epoch-0001", "epoch-0002", "epoch-0003", "epoch-0002-best-keep", ".ipynb_checkpoints"}
    users = {".notes", ".model.safetensors.mine", "epoch-0001/notes.txt"}
    assert kept == {"manifest.json", "manifest-previous.json", *ours, *best, *folders, *users}
    assert (elsewhere / "model.safetensors").read_text() == "mine"


def test_files_are_on_the_disk_before_the_manifest_names_them(tmp_path, monkeypatch):
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
    save(checkpoint, *trained(), 1)
    files = [[f"{name}.safetensors", "epoch-0001", "checkpoint"] for name in ("model", "optimizer")]
    temporary = told[6]
    assert temporary.startswith(".manifest.json.")
    assert told == [*files[0], *files[1], temporary, "-> manifest.json", "checkpoint"]


def test_a_checkpoint_sets_no_attribute_but_those_that_were_saved():
    """D17. A checkpoint restores only the known settings of an optimizer."""
    optimizer = SimpleNamespace(_lr=0.1, _eps=1e-8, step=print)
    restore_settings(optimizer, {"_lr": 0.5})
    assert optimizer._lr == 0.5
    for wrong in ({"step": 3}, {"_lr": "x"}, {"_lr": 0.1, "__class__": 1}):
        with pytest.raises(InputError, match="the checkpoint sets"):
            restore_settings(optimizer, wrong)
    assert (optimizer._lr, optimizer.step) == (0.5, print)


def test_a_checkpoint_brings_back_the_learning_rate_of_rows(tmp_path):
    """As it was when it was written, and not as the program that goes on would begin."""
    saved = SimpleNamespace(_lr=0.5, _eps=1e-8, _state={})
    save(tmp_path, *trained(), 0, task=SimpleNamespace(embeddings={}, sparse_optimizers=[saved]))
    optimizer = SimpleNamespace(_lr=0.1, _eps=1e-8, _state={})
    load(tmp_path, *trained(), SimpleNamespace(embeddings={}, sparse_optimizers=[optimizer]))
    assert optimizer._lr == 0.5


def test_a_trained_model_is_there_for_other_programs(tmp_path):
    model, _ = trained()
    export_weights(model, SETTINGS, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == SETTINGS
    other, _ = trained(steps=0)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def run_ranks(mode: str, *folders: Path) -> list[list[str]]:
    """Two ranks, on two machines as far as they know, each with its checkpoint folder; what they say of each load."""
    return fork(fix_openmp(saves_and_loads), 2, (mode, folders), backend="gloo", threads=1, timeout=60)


def test_damage_that_only_another_machine_sees_sends_all_ranks_back(tmp_path):
    """D16. All ranks load the newest checkpoint that is intact on all machines. Only machine 1 sees the damage."""
    folders = [tmp_path / f"machine-{k}" for k in (0, 1)]
    first, second = run_ranks("damage", *folders)
    assert not (folders[0] / "epoch-0002" / "embeddings-machine-1.safetensors").exists()
    assert not (folders[1] / "manifest.json").exists()
    rows = folders[1] / "epoch-0002" / "embeddings-machine-1.safetensors"
    damage = f"damaged checkpoint: {rows} has other content than when it was written (checksum)"
    assert first == ["2 10.0", f"1 0.0 {damage}"]
    assert second == ["2 11.0", "1 1.0"]


def test_a_machine_without_rows_and_without_a_shared_folder_has_nothing_to_keep(tmp_path):
    folders = [tmp_path / f"machine-{k}" for k in (0, 1)]
    run_ranks("none", *folders)
    assert len(read_checkpoint(folders[0]).manifest.epochs) == 2
    assert not folders[1].exists()


def test_no_rank_removes_a_checkpoint_before_the_new_manifest(tmp_path):
    """Rank 0 takes half a second to write each manifest; the first trainer of another machine removes, too."""
    shared = tmp_path / "shared"
    run_ranks("slow", shared, shared)
    assert {path.name for path in shared.glob("epoch-*")} == {"epoch-0002", "epoch-0003"}


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
    """D17. Every setting that differs from the checkpoint is listed."""
    found = read_checkpoint(saved).manifest.description
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
    load(saved, *trained(steps=0))


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
        [sys.executable, str(PROGRAMS / "checkpoint_failing.py"), str(tmp_path), how],
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
    (saved / ".manifest.json.123").write_text('{"format": 3, "fol')
    found = read_checkpoint(saved)
    assert (len(found.manifest.epochs), found.folder.name) == (1, "epoch-0001")
    (saved / ".model.safetensors").write_bytes(b"half")
    remove_leftovers(saved)
    assert {path.name for path in saved.iterdir()} == {"manifest.json", "epoch-0001"}
    load(saved, *trained(steps=0))


def test_a_checkpoint_that_is_saved_again_keeps_the_one_before(tmp_path):
    """A run that went on from the one before, because the newest was damaged, comes to the same epoch again."""
    for folder in ("epoch-0001", "epoch-0002", "epoch-0002"):
        manifests.publish(tmp_path, Manifest(folder, [], {}, {}))
    assert manifests.named_folders(tmp_path) == ["epoch-0002", "epoch-0001"]


def test_a_checkpoint_without_the_rows_of_this_machine_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TUTORIAL_MACHINE", "machine-3")
    model, optimizer = trained()
    save(tmp_path, model, optimizer, 1)
    rows = {"node": SimpleNamespace(weight=torch.zeros(2, 1))}
    with pytest.raises(InputError, match="has no embeddings of machine-3"):
        load(tmp_path, model, optimizer, SimpleNamespace(embeddings=rows, sparse_optimizers=[]))
