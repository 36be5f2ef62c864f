"""Roles and variables of a job with DGL servers, and checks of its part files. The checks unpickle nothing."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject, check_file, read_json
from tutorial_lib.launcher.findings import FAIL, OK, Finding, verdict
from tutorial_lib.launcher.jobspec import JobSpec, Machine, Role
from tutorial_lib.launcher.shm import SHM

# Files in /dev/shm of DGL 2.1.0. For a graph G, they are G, G_node_inner_node, GG_0_csc_indptr and others. Those of a
# feature F, node~_N~F-kvdata-, contain no name of a graph.
SHM_PATTERNS = [
    r".+-kvdata-",
    r"(.+)_node_(?:inner_node|_ID|meta|node_map)",
    r"(.+)_edge_(?:inner_edge|_ID|_TYPE|edge_map)",
    r"(.+)\1_\d+_(?:csc|csr|coo)_(?:indptr|indices|data|row|col)",
    r"dgl\.graphbolt\..+_(?:meta)?data(?:\.lock)?",
]
DGL_STRUCTURE, GRAPHBOLT_STRUCTURE = "part_graph", "part_graph_graphbolt"  # keys of the partition description
EVERYWHERE = "The path must exist on every machine. Partition again: python -m tutorial_lib partition"
REPAIR = "Copy the file again from its source and compare sha256sum, or partition again into a new folder."
CHECKSUM_BYTES = 1 << 30  # the checksum of a larger file would take too long


@dataclass(frozen=True)
class DglJob:
    """A job of DGL servers, trainers and samplers, or without a partition of plain ranks of torch.distributed."""

    machines: Sequence[Machine]  # in the order of ip_config.txt; machine k serves part k
    command: Sequence[str]  # program of a trainer; with DGL_ROLE=server, it is a server
    part_config: str  # partition description (JSON), or an empty string for a job without DGL servers
    ip_config: str  # path of the address file, readable on every machine
    log_dir: str  # folder that gets one subfolder for each machine
    cwd: str  # working directory of every process
    master_port: int  # on machine 0, where the trainers' process group meets
    trainers: int = 1  # per machine
    samplers: int = 0  # per trainer
    servers: int = 1  # per machine
    graph_format: str = "csc"  # formats that a server builds; neighbor sampling reads csc
    server_threads: int | None = 1  # OpenMP threads, or None for an equal share of a quarter of the CPUs
    omp_threads: int | None = None  # of a trainer; None: the machine's CPUs, divided by the trainers
    env: dict[str, str] = field(default_factory=dict)  # further variables of every process
    shell: bool = False  # the command is /bin/sh -c TEXT
    silence: float | None = None  # see JobSpec
    collective_seconds: float = 600.0  # time limit of the trainers' collectives
    show_output: bool = False  # the agents forward the output of the trainers
    forks: bool = False  # the command calls trainer.session.serve_if_server, which forks servers and trainers

    def to_spec(self) -> JobSpec:
        """Return the job as the launcher runs it."""
        command = None if self.forks else list(self.command)
        trainer = Role("trainer", self.trainers, command, ranked=True, threads=self.omp_threads)
        roles = [trainer]
        checks = []
        env = {"DGLBACKEND": "pytorch", "TUTORIAL_COLLECTIVE_SECONDS": f"{self.collective_seconds:g}"}
        if self.part_config:
            identity = {"DGL_ROLE": "server", "DGL_SERVER_ID": "{global_index}"}
            server = Role("server", self.servers, command, identity, threads=self.server_threads, cpu_share=0.25)
            question = "does the command call dgl.distributed.initialize?"
            server = replace(server, listens=True, service=True, early_end=question)
            roles = [server, replace(trainer, env={"DGL_ROLE": "client"}, after="server")]
            graphbolt = any(word.lower().replace("-", "_").startswith("__use_graphbolt") for word in self.command)
            part = {"part_config": self.part_config, "machines": len(self.machines), "graphbolt": graphbolt}
            checks = [("tutorial_lib.job.dgl:check_part", part)]
            env |= self._dgl_environment()
        return JobSpec(
            machines=list(self.machines),
            roles=roles,
            cwd=self.cwd,
            log_dir=self.log_dir,
            master_port=self.master_port,
            env=env,
            user_env=dict(self.env),
            forkserver_command=list(self.command) if self.forks else None,
            shell=self.shell,
            startup_files=[str(Path(__file__).with_name("dgl_hook.py"))],
            worker_roles={"DGL_NUM_SAMPLER": "sampler"},
            checks=checks,
            same_packages=["torch", "dgl"],
            shm_patterns=SHM_PATTERNS,
            silence=self.silence,
            show_output=self.show_output,
        )

    def _dgl_environment(self) -> dict[str, str]:
        """Return the variables that DGL reads in every process."""
        clients = len(self.machines) * self.trainers * (1 + self.samplers)  # with a wrong number, servers wait forever
        return {
            "DGL_DIST_MODE": "distributed",
            "DGL_IP_CONFIG": self.ip_config,
            "DGL_CONF_PATH": self.part_config,
            "DGL_NUM_SERVER": str(self.servers),
            "DGL_NUM_SAMPLER": str(self.samplers),
            "DGL_NUM_CLIENT": str(clients),
            "DGL_GRAPH_FORMAT": self.graph_format,
            "DGL_DIST_MAX_TRY_TIMES": "20",  # clients wait 3 s after each, so one minute, not 51 as by default
        }


def read_part(config: Path, index: int, machines: int) -> dict[str, Path]:
    """Return the files of part ``index`` by their key in DGL's partition description. Each machine needs a part."""
    description = read_json(config, JsonObject, EVERYWHERE)
    parts = description.get("num_parts")
    entry = description.get(f"part-{index}")
    if parts != machines or not isinstance(entry, dict):
        message = f"{config} has {parts or 'no'} parts for {machines} machines; each machine serves one part"
        raise InputError(message, f"Use as many machines as parts, or partition again with --parts {machines}.")
    return {key: config.parent / value for key, value in entry.items() if isinstance(value, str)}


def check_part(index: int, *, part_config: str, machines: int, graphbolt: bool) -> Iterator[Finding]:
    """Check the files of part ``index`` and the room for them in /dev/shm."""
    config = Path(part_config)
    try:
        files = read_part(config, index, machines)
    except InputError as error:
        yield Finding("partition", FAIL, error.message, error.remedy)
        return
    manifest = dict[Path, tuple[int, str]]()  # size and SHA-256
    with contextlib.suppress(OSError, InputError, LookupError, TypeError, AttributeError):  # a manifest of another tool
        listed = read_json(config.parent / "manifest.json", JsonObject)["files"]
        manifest = {config.parent / name: (file["bytes"], file["sha256"]) for name, file in listed.items()}
    sizes = {path: path.stat().st_size if path.is_file() else 0 for path in [config, *files.values()]}
    pickled = files.get(GRAPHBOLT_STRUCTURE)  # DGL unpickles this file
    for path, size in sizes.items():
        expected, digest = manifest.get(path, (None, None))
        digest = digest if size <= CHECKSUM_BYTES or path == pickled else None
        if problem := check_file(path, expected, digest) or ("" if size else "is empty"):
            yield Finding("partition", FAIL, f"{path} {problem}", REPAIR)
            return
    checksums = "checksums correct" if manifest else "no manifest.json with checksums"
    yield Finding("partition", OK, f"part {index}: {len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB, {checksums}")
    if pickled and pickled not in manifest:
        detail = f"manifest.json has no checksum of {pickled}; if GraphBolt is used, DGL unpickles it, which can run "
        yield Finding("partition format", OK, f"{detail}any code", "Use such a file only if you trust its author.")
    # A server that fills /dev/shm is killed by SIGBUS without a message. DGL 2.1.0 needs the size of the features, and
    # for the format csc as much as graph.dgl has. All servers of a machine share this memory.
    loaded = [GRAPHBOLT_STRUCTURE if graphbolt else DGL_STRUCTURE, "node_feats", "edge_feats"]
    needed = sum(sizes[files[key]] for key in loaded if key in files)
    free = shutil.disk_usage(SHM).free
    detail = f"{free / 1e6:.0f} MB free; the servers need about {needed / 1e6:.0f} MB"
    size = 2 * needed // 10**9 + 1
    remedy = f"sudo mount -o remount,size={size}G /dev/shm (docker: --shm-size={size}g), or use more and smaller parts."
    yield verdict(free >= needed, "/dev/shm", detail, remedy)
