"""A job whose machines share no folder with this one: which files each of them gets, and where its results will be.

What is still out there stands in ``delivery.json`` in the run folder, one ``Start`` for each start of the run. The way
back: ``homecoming``.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from tutorial_lib.cluster import manifests
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.transfer import RESULTS, files_in
from tutorial_lib.errors import InputError, check_trust
from tutorial_lib.files import read_json, write_json

LIST = "delivery.json"
JOB, IP_CONFIG = "job.json", "ip_config.txt"  # in the run folder: settings of the trainers, addresses of the machines
SSH = {"port": int, "username": str, "config": str, "python": str}  # of ``Start.ssh``


@dataclass
class Start:
    """One start of a job: where its results are, and on which machines they still are.

    Attributes:
        folder: on the machines, for the results of this start alone: logs of another are not taken for its own.
        copy_to: the folder above it that the user named.
        logs: below ``folder``, where each machine has a folder of its name; may be empty.
        ssh: arguments of ``SshCluster``, if the machines were reached over ssh.
        machines: name and address of each, the first one first.
        left: names of the machines from which not everything has come yet.
        superseded: a later start continued the run; of this one only the logs are of use.
        on: name of the running emulated machines, if it was on such.
    """

    folder: str
    copy_to: str
    logs: str
    ssh: dict[str, Any]
    machines: list[tuple[str, str]]
    left: list[str]
    superseded: bool = False
    on: str | None = None

    @classmethod
    def of(cls, plan: JobPlan, copy_to: str, name: str, logs: str = "") -> Start:
        """A new one of the job that is called ``name``."""
        machines = [(machine.name, machine.address) for machine in plan.machines]
        folder = f"{copy_to}/{RESULTS}/{name}-{uuid.uuid4().hex[:8]}"
        return cls(folder, copy_to, logs, {}, machines, [machine.name for machine in plan.machines])

    def owner(self, name: str) -> str:
        """The machine that a file below ``folder`` is to come from."""
        path = PurePosixPath(name)
        for machine, _address in self.machines:
            in_logs = path.is_relative_to(PurePosixPath(self.logs, machine))
            if in_logs or path.name == f"embeddings-{machine}.safetensors":
                return machine
        return self.machines[0][0]

    def is_wanted(self, name: str) -> bool:
        """Whether a file is to come home: of a start that was continued nothing that the later one has written anew."""
        return name not in (JOB, IP_CONFIG) and (not self.superseded or PurePosixPath(name).is_relative_to(self.logs))


@dataclass
class _List:
    starts: list[Start]


def read_starts(run: Path) -> list[Start]:
    """Those of a run folder that have something left; none for a run whose machines shared it.

    Raises:
        InputError: the list cannot be read.
    """
    try:
        starts: list[Start] = read_json(run / LIST, _List).starts
    except FileNotFoundError:
        return []
    for start in starts:
        known = all(value is None or type(value) is SSH.get(name) for name, value in start.ssh.items())
        ours = re.fullmatch(rf"{re.escape(start.copy_to)}/{RESULTS}/[^/]+-[0-9a-f]{{8}}", start.folder)
        if not (known and ours and start.machines):
            raise InputError(f"{run / LIST} is damaged: its options of ssh, folders or machines are not those of a job")
    return starts


def check_starts(run: Path, starts: Sequence[Start], given: object = None, *, trust: bool) -> None:
    """Ask before anything connects to machines that a run folder names, unless they are those of the cluster given."""
    known = [machine.address for machine in getattr(given, "machines", ())]
    asked: dict[str, object] = {}
    for start in starts:
        values = {f"ssh {name}": value for name, value in start.ssh.items() if value != getattr(given, name, None)}
        addresses = ", ".join(address for _name, address in start.machines if address not in known)
        asked |= values | ({"machines": addresses} if addresses else {})
        if values or addresses:
            asked |= {"folder there": start.folder}
    check_trust(run / LIST, asked, trust=trust)


def write_starts(run: Path, starts: list[Start]) -> None:
    """Those that have something left."""
    write_json(run / LIST, {"starts": [asdict(start) for start in starts if start.left]})


@dataclass(frozen=True)
class Delivery:
    """What goes where.

    Attributes:
        plan: the job as the machines see it, with their paths.
        files: for each machine, name below ``start.copy_to`` -> local path.
    """

    plan: JobPlan
    files: list[dict[str, Path]]
    start: Start

    @classmethod
    def of_workspace(cls, workspace: Path, plan: JobPlan, folder: str, name: str) -> Delivery:
        """The user's workspace; each machine gets its own part only.

        Raises:
            InputError: a path of the job lies outside of the workspace, so that it would not be there.
        """
        workspace, there = workspace.resolve(), {}
        for option in ("part_config", "ip_config"):
            path = Path(getattr(plan, option))
            if not path.is_relative_to(workspace):
                raise InputError(
                    f"--{option} {path} is not inside the --workspace {workspace}, which is what the machines get",
                    "Move it there, choose a larger --workspace, or leave out --copy_to or --own-disks.",
                )
            there[option] = f"{folder}/{path.relative_to(workspace)}"
        everything = files_in(workspace, skip=lambda path: path.is_relative_to(plan.log_dir))
        start = Start.of(plan, folder, name)
        return cls(replace(plan, cwd=folder, log_dir=start.folder, **there), _own_files(everything, plan), start)

    @classmethod
    def of_run(
        cls,
        partition: Path,
        out: Path,
        plan: JobPlan,
        plan_at: Callable[[PurePath, PurePath, PurePath], JobPlan],
        folder: str,
    ) -> Delivery:
        """A training run of ours: the partition, the run's settings, and the checkpoints that it may continue from.

        Args:
            plan: with the paths of this computer.
            plan_at: makes the plan from the folder of the partition, the run folder and the working directory.
            folder: on the machines, for all of these.
        """
        start = Start.of(plan, folder, out.name, logs=str(Path(plan.log_dir).relative_to(out)))
        parts, run = f"partitions/{partition.name}", start.folder.removeprefix(f"{folder}/")
        everything = {f"{parts}/{file}": path for file, path in files_in(partition).items()}
        everything |= {f"{run}/{name}": out / name for name in (JOB, IP_CONFIG)}
        files = _own_files(everything, plan)
        for machine, its in zip(plan.machines, files, strict=True):
            its |= {f"{run}/{name}": path for name, path in checkpoint_files(out, start, machine.name).items()}
        there = PurePosixPath(folder)
        return cls(plan_at(there / parts, there / run, there), files, start)


def checkpoint_files(run: Path, start: Start, machine: str) -> dict[str, Path]:
    """What a machine needs of the checkpoints in a run folder: what would come home from there."""
    kept = manifests.kept(run)
    names = [name for manifest in kept for name in (f"{manifests.FOLDER}/{manifest.path.name}", *manifest.files)]
    return {name: run / name for name in names if start.owner(name) == machine and (run / name).is_file()}


def _own_files(everything: Mapping[str, Path], plan: JobPlan) -> list[dict[str, Path]]:
    """For each machine all files but those that belong to the part of another alone, as the description names them."""
    config = Path(plan.part_config)
    description = json.loads(config.read_text())
    parts: list[set[Path]] = []
    for k in range(len(plan.machines)):
        named = [config.parent / str(name) for name in description.get(f"part-{k}", {}).values()]
        parts.append({path.resolve() for first in named for path in first.parent.rglob("*")})
    of_somebody, paths = set.union(*parts), {name: path.resolve() for name, path in everything.items()}
    return [
        {name: path for name, path in everything.items() if paths[name] in part or paths[name] not in of_somebody}
        for part in parts
    ]
