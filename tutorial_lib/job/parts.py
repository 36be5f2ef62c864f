"""Checks of a machine's part files before a server loads them: presence, size and checksum.

This module unpickles nothing and does not import DGL. A server reports damaged contents of files without a manifest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.files import check_file
from tutorial_lib.job.dgl import JobPlan, check_parts
from tutorial_lib.launcher.findings import FAIL, OK, SKIP, Finding

STRUCTURE, FEATURES, GRAPHBOLT = "part_graph", ("node_feats", "edge_feats"), "part_graph_graphbolt"
FORMATS = {STRUCTURE: "DGL", GRAPHBOLT: "GraphBolt"}
EVERYWHERE = "The path must exist on every machine. Partition again: python -m tutorial_lib partition"
REPAIR = "Copy the file again from where it was made and compare sha256sum, or partition again into a new folder."
FORMAT_SHARE = 0.65  # of graph.dgl, for each format after the first; measured
CHECKSUM_SECONDS = 10.0


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


def part_findings(plan: JobPlan, index: int, seconds: float = CHECKSUM_SECONDS) -> Iterator[Finding]:
    """Check the part files of machine ``index``. After ``seconds``, only the file that DGL unpickles is compared."""
    if not plan.part_config:
        yield Finding("partition", SKIP, "no --part_config given")
        return
    config = Path(plan.part_config)
    try:
        files, manifest = read_part(config, index, len(plan.machines)), read_manifest(config)
    except InputError as error:
        yield Finding("partition", FAIL, error.message, error.remedy)
        return
    sizes = {path: path.stat().st_size if path.is_file() else 0 for path in [config, *files.values()]}
    deadline, compared, graphbolt = time.monotonic() + seconds, 0, files.get(GRAPHBOLT)
    for path in sorted(sizes, key=lambda path: (path != graphbolt, sizes[path])):
        size, checksum = manifest.get(path, (None, None))
        if path != graphbolt and time.monotonic() + sizes[path] / 1e9 > deadline:
            checksum = None
        problem = check_file(path, size, checksum) or ("" if sizes[path] else "is empty")
        if problem:
            yield Finding("partition", FAIL, f"{path} {problem}", REPAIR)
            return
        compared += checksum is not None
    checksums = f"{compared} checksums right" if manifest else "no manifest.json with checksums"
    yield Finding("partition", OK, f"part {index}: {len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB, {checksums}")
    yield _format_finding(files, asks_for_graphbolt(plan), graphbolt in manifest)


def _format_finding(files: dict[str, Path], asked: bool, known: bool) -> Finding:
    """Check that the part has the format that the servers load. ``known``: we made the file that DGL unpickles."""
    check, there = "partition format", " and ".join(name for key, name in FORMATS.items() if key in files)
    wanted = GRAPHBOLT if asked else STRUCTURE
    if wanted not in files:
        remedy = "Partition with use_graphbolt=True, or call dgl.distributed.dgl_partition_to_graphbolt(part_config)."
        if there and not asked:
            remedy = "Let the script call initialize(..., use_graphbolt=True)."
        return Finding(
            check, FAIL, f"the part has no structure for {FORMATS[wanted]}, only {there or 'others'}", remedy
        )
    if GRAPHBOLT in files and not known:
        detail = f"manifest.json has no checksum of {files[GRAPHBOLT]}; if GraphBolt is used, DGL unpickles it, "
        return Finding(check, OK, f"{detail}which can run any code", "Use such a file only if you trust its author.")
    return Finding(check, OK, there)


def asks_for_graphbolt(plan: JobPlan) -> bool:
    """Return whether the command line shows that servers load parts in GraphBolt's format."""
    return any(word.lower().replace("-", "_").startswith("__use_graphbolt") for word in plan.command)


def shm_bytes_needed(plan: JobPlan, index: int) -> int:
    """Return the bytes that the servers and trainers of machine ``index`` put into /dev/shm, from file sizes.

    DGL 2.1.0 needs the size of the features, and for the format ``csc`` as much as graph.dgl has. All servers of a
    machine share this memory. See ``read_part`` for errors.
    """
    files = read_part(Path(plan.part_config), index, len(plan.machines)) if plan.part_config else {}
    sizes = {key: path.stat().st_size for key, path in files.items() if path.is_file()}
    structure = sizes.get(STRUCTURE, 0) * (1 + FORMAT_SHARE * plan.graph_format.count(","))
    if asks_for_graphbolt(plan) or not structure:
        structure = sizes.get(GRAPHBOLT, structure)
    return int(structure) + sum(sizes.get(key, 0) for key in FEATURES) + plan.shm_of_trainers
