"""Checks of the part files of one machine before a server loads them: presence, size and checksum.

Nothing is unpickled and DGL is not imported. A server reports damaged contents of files without a manifest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding
from tutorial_lib.cluster.plan import JobPlan, check_parts
from tutorial_lib.errors import InputError
from tutorial_lib.files import check_file

STRUCTURE, FEATURES, GRAPHBOLT = "part_graph", ("node_feats", "edge_feats"), "part_graph_graphbolt"
AGAIN = "Partition again: python -m tutorial_lib partition --dataset NAME --parts K --out DIR"
REPAIR = "Copy the file again from where it was made and compare sha256sum, or partition again into a new folder."
FORMAT_SHARE = 0.65  # of graph.dgl, for each format beyond the first; measured
CHECKSUM_SECONDS = 10.0

Files = Mapping[str, Path]  # of a part, by the key that DGL's description has for them; "" is the description itself
Manifest = Mapping[Path, Mapping[str, Any]]  # what is expected of a file (bytes, sha256), in a partition of ours


def read_part(config: Path, index: int, machines: int) -> tuple[Files, Manifest]:
    """What DGL's description says of part ``index``; relative paths start at its folder, as DGL reads them.

    Raises:
        InputError: it cannot be read, or has another number of parts than there are machines.
    """
    everywhere = f"The path must hold on every machine. {AGAIN}"
    try:
        description = json.loads(config.read_text())
        parts = description["num_parts"]
    except OSError as error:
        raise InputError(f"cannot read {config}: {error.strerror}", everywhere) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{config} is not a partition description of DGL", everywhere) from None
    check_parts(parts, machines, config)
    entry = description.get(f"part-{index}")
    if not isinstance(entry, dict):
        raise InputError(f"{config} does not describe part-{index}", everywhere)
    try:
        expected = json.loads((config.parent / "manifest.json").read_text())["files"]
        manifest = {config.parent / name: about for name, about in expected.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        manifest = {}
    files = {key: config.parent / value for key, value in entry.items() if isinstance(value, str)}
    return {"": config, **files}, manifest


def part_findings(plan: JobPlan, index: int, seconds: float = CHECKSUM_SECONDS) -> Iterator[Finding]:
    """All checks of the part files of machine ``index``; checksums end after so many seconds."""
    if not plan.part_config:
        yield Finding("partition", SKIP, "no --part_config given")
        return
    try:
        files, manifest = read_part(Path(plan.part_config), index, len(plan.machines))
    except InputError as error:
        yield Finding("partition", FAIL, error.message, error.remedy)
        return
    problems = {path: problem for path in files.values() if (problem := _problem(path, manifest))}
    for path, problem in problems.items():
        remedy = "Its user needs to read it." if "cannot be read" in problem else REPAIR
        yield Finding("partition", FAIL, f"{path} {problem}", remedy)
    if not problems:
        graphbolt = asks_for_graphbolt(plan)
        yield _checksums(files, manifest, index, graphbolt, seconds)
        yield _formats(files, manifest, graphbolt)


def asks_for_graphbolt(plan: JobPlan) -> bool:
    """Whether the command line shows that servers load parts in GraphBolt's format."""
    return any(word.lower().replace("-", "_").startswith("__use_graphbolt") for word in plan.command)


def _problem(path: Path, manifest: Manifest) -> str | None:
    """Return the continuation of a sentence about a file that is missing, unreadable, empty or of the wrong size."""
    if problem := check_file(path, manifest.get(path, {}).get("bytes"), None):
        return problem
    return "is empty" if path.stat().st_size == 0 else None


def _checksums(files: Files, manifest: Manifest, index: int, graphbolt: bool, seconds: float) -> Finding:
    """Compare with the manifest. What the job will unpickle comes first, and is compared however long it takes."""
    sizes = {path: path.stat().st_size for path in files.values()}
    there, total = f"{len(sizes)} files", f"{sum(sizes.values()) / 1e6:.1f} MB"
    unpickled = files.get(GRAPHBOLT) if graphbolt else None
    known = sorted(set(sizes) & set(manifest), key=lambda path: (path != unpickled, sizes[path]))
    if not known:
        return Finding("partition", OK, f"part {index}: {there} there, {total}; no manifest.json with checksums")
    deadline = time.monotonic() + seconds
    for done, path in enumerate(known):
        if path != unpickled and time.monotonic() + sizes[path] / 1e9 > deadline:
            left = ", ".join(p.name for p in known[done:])
            return Finding("partition", SKIP, f"all sizes are right; checksums take longer than {seconds:g} s: {left}")
        if problem := check_file(path, None, manifest[path]["sha256"]):
            return Finding("partition", FAIL, f"{path} {problem}", REPAIR)
    return Finding("partition", OK, f"part {index}: {there}, {total}, checksums right")


def _formats(files: Files, manifest: Manifest, asked: bool) -> Finding:
    """Is the format there? A GraphBolt file without a checksum of ours may be anybody's: allowed, and announced.

    A script asks by ``initialize(use_graphbolt=True)``; ``asked`` says whether its command line shows that.
    """
    structure, path = STRUCTURE in files, files.get(GRAPHBOLT)
    there = " and ".join(name for name, has in [("DGL", structure), ("GraphBolt", path)] if has)
    if asked and path is None:
        remedy = "Partition with use_graphbolt=True, or call dgl.distributed.dgl_partition_to_graphbolt(part_config)."
        return Finding("partition format", FAIL, "the command asks for GraphBolt; the part has DGL's only", remedy)
    if not structure and not asked:
        detail = f"the part has no DGL structure ({there or 'none at all'})"
        return Finding("partition format", FAIL, detail, "Let the script call initialize(..., use_graphbolt=True).")
    if path is None or path in manifest:
        return Finding("partition format", OK, there)
    when = "" if asked else "if the script calls initialize(use_graphbolt=True), "
    detail = f"{there}; no manifest.json has a checksum of {path}: {when}DGL unpickles it, which can run any code"
    return Finding("partition format", OK, detail, "Use such a file only if you, or somebody you trust, made it.")


def shm_bytes_needed(plan: JobPlan, index: int) -> int:
    """Bytes that the servers of machine ``index`` put into /dev/shm, from file sizes, and what the plan's trainers add.

    Measured with DGL 2.1.0: the features as they are, and with one format (``csc``) as much as graph.dgl has;
    GraphBolt's as its file has.
    Backup servers share all of it. Raises InputError where ``read_part`` does.
    """
    files = read_part(Path(plan.part_config), index, len(plan.machines))[0] if plan.part_config else {}
    sizes = {key: path.stat().st_size for key, path in files.items() if path.is_file()}
    structure = sizes.get(STRUCTURE, 0) * (1 + FORMAT_SHARE * plan.graph_format.count(","))
    if asks_for_graphbolt(plan) or not structure:
        structure = sizes.get(GRAPHBOLT, structure)
    return int(structure) + sum(sizes.get(key, 0) for key in FEATURES) + plan.shm_of_trainers
