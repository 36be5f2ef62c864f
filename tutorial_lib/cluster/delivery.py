"""A job whose machines share no folder with this one: which files each of them gets, and what comes back."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.job import JobPlan
from tutorial_lib.cluster.spec import Cluster
from tutorial_lib.cluster.transfer import deliver, fetch, files_in
from tutorial_lib.errors import InputError, TutorialError
from tutorial_lib.files import write_json

COPY_SECONDS = 60.0  # for a machine to end after the last file; a dead connection is noticed by the transport
RESULTS = ".tutorial_lib"  # folder below the copy that gets the logs

OnEvent = Callable[[dict[str, Any]], None]


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
        """A training run of ours: the partition, the run's settings, and the checkpoint that it continues from."""
        name = of_this_start(out.name)
        results, parts = f"{folder}/{RESULTS}/{name}", f"{folder}/partitions/{partition.name}"
        job = json.loads((out / "job.json").read_text()) | {"partition": parts, "out": results}
        write_json(out / "job-remote.json", job)
        everything = {f"partitions/{partition.name}/{file}": path for file, path in files_in(partition).items()}
        given = {"job.json": out / "job-remote.json", "ip_config.txt": out / "ip_config.txt"}
        if (out / "checkpoint").is_dir():
            given |= {f"checkpoint/{file}": path for file, path in files_in(out / "checkpoint").items()}
        everything |= {f"{RESULTS}/{name}/{file}": path for file, path in given.items()}
        remote = replace(
            plan,
            cwd=folder,
            command=[*plan.command[:-1], f"{results}/job.json"],
            part_config=f"{parts}/{Path(plan.part_config).name}",
            ip_config=f"{results}/ip_config.txt",
            log_dir=f"{results}/{Path(plan.log_dir).relative_to(out)}",
        )
        return cls(remote, folder, _own_files(everything, plan), results)


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


def deliver_files(cluster: Cluster, delivery: Delivery, on_event: OnEvent) -> None:
    """Copy to all machines at once; raises a JobError that names the machine."""

    def copy(k: int) -> int:
        return deliver(cluster, cluster.machines[k], delivery.files[k], delivery.folder, COPY_SECONDS)

    with ThreadPoolExecutor(max_workers=8) as pool:
        for k, count in enumerate(pool.map(copy, range(len(cluster.machines)))):
            text = f"{cluster.machines[k].name}: {count} of {len(delivery.files[k])} files copied, checksums verified"
            on_event({"kind": "copied", "text": text, "time": time.time()})


def fetch_results(cluster: Cluster, delivery: Delivery, out: Path, on_event: OnEvent) -> None:
    """Bring logs and results home; a machine that cannot be reached any more only gets a warning."""

    def bring(k: int) -> str:
        try:
            fetch(cluster, cluster.machines[k], delivery.results, out, COPY_SECONDS)
        except TutorialError as error:
            return f"{error}; its logs are still there in {delivery.results}"
        return ""

    with ThreadPoolExecutor(max_workers=8) as pool:
        for text in filter(None, pool.map(bring, range(len(cluster.machines)))):
            on_event({"kind": "warning", "text": text, "time": time.time()})
