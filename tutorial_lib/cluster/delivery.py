"""A job whose machines share no folder with this one: which files each of them gets. The way back: ``homecoming``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tutorial_lib.cluster import manifests
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.transfer import RESULTS, files_in
from tutorial_lib.errors import InputError
from tutorial_lib.files import write_json


@dataclass(frozen=True)
class Delivery:
    """What goes where.

    Attributes:
        plan: the job as the machines see it, with their paths.
        folder: on the machines.
        files: for each machine, name below ``folder`` -> local path.
        results: folder on the machines that holds logs and results.
    """

    plan: JobPlan
    folder: str
    files: list[dict[str, Path]]
    results: str

    @classmethod
    def of_workspace(cls, workspace: Path, plan: JobPlan, folder: str, name: str) -> Delivery:
        """The user's workspace; each machine gets its own part only.

        Raises:
            InputError: a path of the job lies outside of the workspace, so that it would not be there.
        """
        workspace = workspace.resolve()
        for option, path in [("--part_config", plan.part_config), ("--ip_config", plan.ip_config)]:
            if not Path(path).is_relative_to(workspace):
                raise InputError(
                    f"{option} {path} is not inside the --workspace {workspace}, which is what --copy_to copies",
                    "Move it there, choose a larger --workspace, or leave out --copy_to with a shared folder.",
                )
        out = Path(plan.log_dir)
        everything = files_in(workspace, skip=lambda path: path.is_relative_to(out))
        results = f"{folder}/{RESULTS}/{of_this_start(name)}"
        remote = replace(
            plan,
            cwd=folder,
            part_config=f"{folder}/{Path(plan.part_config).relative_to(workspace)}",
            ip_config=f"{folder}/{Path(plan.ip_config).relative_to(workspace)}",
            log_dir=results,
        )
        return cls(remote, folder, _own_files(everything, plan), results)

    @classmethod
    def of_run(cls, partition: Path, plan: JobPlan, folder: str, out: Path) -> Delivery:
        """A training run of ours: the partition, the run's settings, and the checkpoints that it may continue from."""
        name = of_this_start(out.name)
        results, parts = f"{folder}/{RESULTS}/{name}", f"{folder}/partitions/{partition.name}"
        job = json.loads((out / "job.json").read_text()) | {"partition": parts, "out": results}
        write_json(out / "job-remote.json", job)
        everything = {f"partitions/{partition.name}/{file}": path for file, path in files_in(partition).items()}
        everything[f"{RESULTS}/{name}/job.json"] = out / "job-remote.json"
        everything[f"{RESULTS}/{name}/ip_config.txt"] = out / "ip_config.txt"
        remote = replace(
            plan,
            cwd=folder,
            command=[*plan.command[:-1], f"{results}/job.json"],
            part_config=f"{parts}/{Path(plan.part_config).name}",
            ip_config=f"{results}/ip_config.txt",
            log_dir=f"{results}/{Path(plan.log_dir).relative_to(out)}",
        )
        files = _own_files(everything, plan)
        for own, machine in zip(files, plan.machines, strict=True):
            for file, path in checkpoint_files(out, machine.name, first=machine == plan.machines[0]).items():
                own[f"{RESULTS}/{name}/{file}"] = path
        return cls(remote, folder, files, results)


def checkpoint_files(run: Path, machine: str, *, first: bool) -> dict[str, Path]:
    """What a machine needs of the checkpoints in a run folder: its own rows; the first one also what all share."""
    files = {}
    for manifest in manifests.kept(run):
        if first:
            files[f"{manifests.FOLDER}/{manifest.path.name}"] = manifest.path
        for name in manifest.files:
            owner = manifest.owners.get(name)
            path = manifest.path.parent / manifest.folder / name
            if (owner == machine or (first and owner is None)) and path.is_file():
                files[f"{manifests.FOLDER}/{manifest.folder}/{name}"] = path
    return files


def of_this_start(name: str) -> str:
    """A name on the machines that no other start has: events and logs of an earlier one are not taken for its own."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _own_files(everything: Mapping[str, Path], plan: JobPlan) -> list[dict[str, Path]]:
    """For each machine all files but the parts of the others."""
    parts = part_files(Path(plan.part_config), len(plan.machines))
    return [
        {
            name: path
            for name, path in everything.items()
            if not any(path.resolve() in part for j, part in enumerate(parts) if j != k)
        }
        for k in range(len(plan.machines))
    ]


def part_files(part_config: Path, parts: int) -> list[set[Path]]:
    """For each part, the files that belong to it alone, as the partition description names them."""
    description: Mapping[str, Any] = json.loads(part_config.read_text())
    found = []
    for k in range(parts):
        named = [part_config.parent / str(name) for name in description.get(f"part-{k}", {}).values()]
        found.append({path.resolve() for first in named for path in first.parent.rglob("*")} if named else set())
    shared = set.intersection(*found) if len(found) > 1 else set()
    return [part - shared for part in found]
