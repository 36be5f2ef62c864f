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
        everything = files_in(workspace, skip=lambda path: path.is_relative_to(plan.log_dir))
        results = _results(folder, name)
        there = {
            name: f"{folder}/{Path(path).relative_to(workspace)}"
            for name, path in [("part_config", plan.part_config), ("ip_config", plan.ip_config)]
        }
        remote = replace(plan, cwd=folder, log_dir=results, **there)
        return cls(remote, folder, _own_files(everything, plan), results)

    @classmethod
    def of_run(cls, partition: Path, plan: JobPlan, folder: str, out: Path) -> Delivery:
        """A training run of ours: the partition, the run's settings, and the checkpoints that it may continue from."""
        results, parts = _results(folder, out.name), f"{folder}/partitions/{partition.name}"
        own = results.removeprefix(f"{folder}/")
        job = json.loads((out / "job.json").read_text()) | {"partition": parts, "out": results}
        write_json(out / "job-remote.json", job)
        everything = {f"partitions/{partition.name}/{file}": path for file, path in files_in(partition).items()}
        everything |= {f"{own}/job.json": out / "job-remote.json", f"{own}/ip_config.txt": out / "ip_config.txt"}
        remote = replace(
            plan,
            cwd=folder,
            command=[*plan.command[:-1], f"{results}/job.json"],
            part_config=f"{parts}/{Path(plan.part_config).name}",
            ip_config=f"{results}/ip_config.txt",
            log_dir=f"{results}/{Path(plan.log_dir).relative_to(out)}",
        )
        files = _own_files(everything, plan)
        for k, machine in enumerate(plan.machines):
            saved = checkpoint_files(out, machine.name, first=k == 0)
            files[k] |= {f"{own}/{file}": path for file, path in saved.items()}
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


def _results(folder: str, name: str) -> str:
    """A folder on the machines that no other start has: events and logs of an earlier one are not taken for its own."""
    return f"{folder}/{RESULTS}/{name}-{uuid.uuid4().hex[:8]}"


def _own_files(everything: Mapping[str, Path], plan: JobPlan) -> list[dict[str, Path]]:
    """For each machine all files but those that belong to the part of another alone, as the description names them."""
    config = Path(plan.part_config)
    description: Mapping[str, Any] = json.loads(config.read_text())
    parts: list[set[Path]] = []
    for k in range(len(plan.machines)):
        named = [config.parent / str(name) for name in description.get(f"part-{k}", {}).values()]
        parts.append({path.resolve() for first in named for path in first.parent.rglob("*")})
    of_somebody, paths = set.union(*parts), {name: path.resolve() for name, path in everything.items()}
    return [
        {name: path for name, path in everything.items() if paths[name] in part or paths[name] not in of_somebody}
        for part in parts
    ]
