"""Checks of a machine's part files before a server loads them: presence, size and checksum.

This module unpickles nothing and does not import DGL. A server reports damaged contents of files without a manifest.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.files import check_file
from tutorial_lib.launcher.findings import FAIL, OK, Finding, verdict
from tutorial_lib.launcher.shm import SHM

STRUCTURE, FEATURES, GRAPHBOLT = "part_graph", ("node_feats", "edge_feats"), "part_graph_graphbolt"
FORMATS = {STRUCTURE: "DGL", GRAPHBOLT: "GraphBolt"}
EVERYWHERE = "The path must exist on every machine. Partition again: python -m tutorial_lib partition"
REPAIR = "Copy the file again from where it was made and compare sha256sum, or partition again into a new folder."
FORMAT_SHARE = 0.65  # of graph.dgl, for each format after the first; measured
CHECKSUM_SECONDS = 10.0


def check_parts(parts: int, machines: int, where: Path) -> None:
    """Raise an InputError unless there is one part for each machine."""
    if parts != machines:
        raise InputError(
            f"{where} has {parts} parts for {machines} machines; each machine serves one part",
            f"Use --emulate {parts}, or partition again with --parts {machines}.",
        )


def read_part(config: Path, index: int, machines: int) -> dict[str, Path]:
    """Return the files of part ``index`` by their key in DGL's partition description.

    Raises:
        InputError: the description cannot be read, or has another number of parts than there are machines.
    """
    try:
        description = json.loads(config.read_text())
        parts, entry = description["num_parts"], description.get(f"part-{index}")
    except OSError as error:
        raise InputError(f"cannot read {config}: {error.strerror}", EVERYWHERE) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{config} is not a partition description of DGL", EVERYWHERE) from None
    check_parts(parts, machines, config)
    if not isinstance(entry, dict):
        raise InputError(f"{config} does not describe part-{index}", EVERYWHERE)
    return {key: config.parent / value for key, value in entry.items() if isinstance(value, str)}


def read_manifest(config: Path) -> dict[Path | None, tuple[int, str]]:
    """Return size and SHA-256 of the files of a partition that we made, and an empty dictionary for others."""
    try:
        files = json.loads((config.parent / "manifest.json").read_text())["files"]
        return {config.parent / name: (file["bytes"], file["sha256"]) for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def check_part(
    index: int,
    *,
    part_config: str,
    ip_config: str = "",
    machines: int,
    graphbolt: bool = False,
    formats: int = 1,
    shm_of_trainers: int = 0,
    seconds: float = CHECKSUM_SECONDS,
) -> Iterator[Finding]:
    """Check the files of part ``index``, their format, the room for them in /dev/shm, and the address file.

    Args:
        machines: number of machines, which must be the number of parts.
        graphbolt: whether the servers load the part in GraphBolt's format.
        formats: number of sparse formats that the servers create.
        shm_of_trainers: bytes that the trainers add to /dev/shm.
        seconds: after this time, only the checksum of the file that DGL unpickles is compared.
    """
    config = Path(part_config)
    try:
        files, manifest = read_part(config, index, machines), read_manifest(config)
    except InputError as error:
        yield Finding("partition", FAIL, error.message, error.remedy)
        return
    if ip_config and not Path(ip_config).exists():
        yield Finding("address file", FAIL, f"there is no file {ip_config}", "It must exist on every machine.")
    sizes = {path: path.stat().st_size if path.is_file() else 0 for path in [config, *files.values()]}
    deadline, compared, pickled = time.monotonic() + seconds, 0, files.get(GRAPHBOLT)
    for path in sorted(sizes, key=lambda path: (path != pickled, sizes[path])):
        size, checksum = manifest.get(path, (None, None))
        if path != pickled and time.monotonic() + sizes[path] / 1e9 > deadline:
            checksum = None
        if problem := check_file(path, size, checksum) or ("" if sizes[path] else "is empty"):
            yield Finding("partition", FAIL, f"{path} {problem}", REPAIR)
            return
        compared += checksum is not None
    checksums = f"{compared} checksums right" if manifest else "no manifest.json with checksums"
    yield Finding("partition", OK, f"part {index}: {len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB, {checksums}")
    yield _check_format(files, graphbolt, pickled in manifest)
    yield _check_shm(files, graphbolt, formats, shm_of_trainers)


def _check_format(files: dict[str, Path], graphbolt: bool, known: bool) -> Finding:
    """Check that the part has the format that the servers load. ``known``: we made the file that DGL unpickles."""
    check, there = "partition format", " and ".join(name for key, name in FORMATS.items() if key in files)
    wanted = GRAPHBOLT if graphbolt else STRUCTURE
    if wanted not in files:
        remedy = "Partition with use_graphbolt=True, or call dgl.distributed.dgl_partition_to_graphbolt(part_config)."
        if there and not graphbolt:
            remedy = "Let the script call initialize(..., use_graphbolt=True)."
        detail = f"the part has no structure for {FORMATS[wanted]}, only {there or 'others'}"
        return Finding(check, FAIL, detail, remedy)
    if GRAPHBOLT in files and not known:
        detail = f"manifest.json has no checksum of {files[GRAPHBOLT]}; if GraphBolt is used, DGL unpickles it, "
        return Finding(check, OK, f"{detail}which can run any code", "Use such a file only if you trust its author.")
    return Finding(check, OK, there)


def _check_shm(files: dict[str, Path], graphbolt: bool, formats: int, shm_of_trainers: int) -> Finding:
    """Check the size of /dev/shm. A server that fills it is killed by SIGBUS without a message.

    DGL 2.1.0 needs the size of the features, and for the format ``csc`` as much as graph.dgl has. All servers of a
    machine share this memory.
    """
    sizes = {key: path.stat().st_size for key, path in files.items()}
    structure = sizes.get(STRUCTURE, 0) * (1 + FORMAT_SHARE * (formats - 1))
    if graphbolt or not structure:
        structure = sizes.get(GRAPHBOLT, structure)
    needed = int(structure) + sum(sizes.get(key, 0) for key in FEATURES) + shm_of_trainers
    free, size = shutil.disk_usage(SHM).free, 2 * needed // 10**9 + 1
    detail = f"{free / 1e6:.0f} MB free; the servers would put about {needed / 1e6:.0f} MB there"
    remedy = f"sudo mount -o remount,size={size}G /dev/shm (docker: --shm-size={size}g), or use more and smaller parts."
    return verdict(free >= needed, "/dev/shm", detail, remedy)
