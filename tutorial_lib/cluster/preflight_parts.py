"""The part files of one machine, looked at before a server loads them: there, whole, and of a kind that it can hold.

Only headers are read, and whole files for their checksums; nothing is unpickled and DGL is not imported.
The layouts are those of DGL 2.1.0 (``src/graph/serialize``, ``src/array/ndarray.cc``)::

    node_feat.dgl   magic, count, count, then per tensor: name length, name, magic, 0, device (2 x int32),
                    dimensions (int32), type code, bits (2 x uint8), lanes (uint16), shape, bytes, data
    graph.dgl       magic, version, ...
    *.pt            a zip archive (GraphBolt)
"""

from __future__ import annotations

import json
import math
import os
import struct
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.files import sha256_of

TENSORS_MAGIC, TENSOR_MAGIC, GRAPH_MAGIC = 0xDD5A9FBE3FA2443F, 0xDD5E40F096B4A13F, 0xDD2E4FF046B4A13F
TYPE_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
HELD_BY_SERVERS = {"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
STRUCTURE, FEATURES, GRAPHBOLT = "part_graph", ("node_feats", "edge_feats"), "part_graph_graphbolt"
AGAIN = "Partition again: python -m tutorial_lib partition --dataset NAME --parts K --out DIR"
REPAIR = "Copy the file again from where it was made and compare sha256sum, or partition again into a new folder."
FORMAT_SHARE = 0.65  # of graph.dgl, for each format beyond the first; measured


class BadFile(Exception):
    """A file is not what its name says; the text continues a sentence that begins with the path."""


@dataclass(frozen=True)
class Part:
    """Part ``index`` of the partition that a JSON file of DGL's describes."""

    config: Path
    index: int
    description: dict[str, Any]

    @cached_property
    def files(self) -> dict[str, Path]:
        """Path of each file, by its key in the JSON; relative ones start at its folder, as DGL reads them."""
        entry = self.description[f"part-{self.index}"]
        return {key: self.config.parent / value for key, value in entry.items() if isinstance(value, str)}

    @cached_property
    def manifest(self) -> dict[Path, dict[str, Any]]:
        """Size and SHA-256 by path, if the partition is one of ours; else empty."""
        try:
            files = json.loads((self.config.parent / "manifest.json").read_text())["files"]
            return {self.config.parent / name: expected for name, expected in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def part_findings(plan: JobPlan, index: int, checksum_seconds: float) -> Iterator[Finding]:
    """All checks of the part files of machine ``index``; checksums end after so many seconds."""
    if not plan.part_config:
        yield Finding("partition", SKIP, "no --part_config given")
        return
    try:
        part = read_part(Path(plan.part_config), index, len(plan.machines))
    except BadFile as error:
        remedy = AGAIN if "parts for" in str(error) else f"The path must hold on every machine. {AGAIN}"
        yield Finding("partition", FAIL, str(error), remedy)
        return
    whole = True
    for key, path in {"": part.config, **part.files}.items():
        try:
            check_file(path, key, part.manifest.get(path))
        except BadFile as error:
            whole = False
            yield Finding("partition", FAIL, f"{path} {error}", REPAIR)
        except OSError as error:
            whole = False
            yield Finding("partition", FAIL, f"cannot read {path}: {error.strerror}", "Its user needs to read it.")
    if whole:
        yield _checksums(part, plan, checksum_seconds)
        yield _formats(part, plan)
        yield _dtypes(part)


def read_part(config: Path, index: int, machines: int) -> Part:
    """Open the description of the partition. Raises BadFile, also for another number of parts than machines."""
    try:
        description = json.loads(config.read_text())
        parts = description["num_parts"]
    except OSError as error:
        raise BadFile(f"cannot read {config}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise BadFile(f"{config} is not a partition description of DGL") from None
    if parts != machines:
        raise BadFile(f"{config} has {parts} parts for {machines} machines; each machine serves one part")
    if not isinstance(description.get(f"part-{index}"), dict):
        raise BadFile(f"{config} does not describe part-{index}")
    return Part(config, index, description)


def check_file(path: Path, key: str, expected: dict[str, Any] | None) -> None:
    """Raise BadFile unless the file is there, has the size that the manifest expects, and begins (and, where its layout
    tells, ends) as a file of this kind does.
    """
    if not path.is_file():
        raise BadFile("is missing")
    size = path.stat().st_size
    if expected is not None and size != expected["bytes"]:
        raise BadFile(f"has {size} bytes, expected {expected['bytes']}")
    if key in FEATURES:
        tensor_types(path)
    elif key == GRAPHBOLT:
        if not zipfile.is_zipfile(path):  # the table of contents is at the end: a cut file has none
            raise BadFile("is not a file of torch.save, or a part of one")
    elif key == STRUCTURE:
        with path.open("rb") as file:
            if file.read(8) != struct.pack("<Q", GRAPH_MAGIC):
                raise BadFile("is not a file of dgl.save_graphs")
    elif size == 0:
        raise BadFile("is empty")


def tensor_types(path: Path) -> dict[str, str]:
    """``{"_N/feat": "float32"}``: the dtypes in a file of ``dgl.data.save_tensors``, from its headers alone.

    Raises:
        BadFile: not such a file, or not all of it.
    """
    size = path.stat().st_size
    types: dict[str, str] = {}
    with path.open("rb") as file:

        def take(layout: str) -> tuple:
            data = file.read(struct.calcsize(layout))
            if len(data) < struct.calcsize(layout):
                raise BadFile(f"is cut off: it ends at byte {size}, inside a header")
            return struct.unpack(layout, data)

        if take("<Q") != (TENSORS_MAGIC,):
            raise BadFile("is not a file of dgl.data.save_tensors")
        count, _ = take("<QQ")
        for _ in range(count):
            (length,) = take("<Q")
            if length > size:
                raise BadFile("has a damaged header")
            (name,) = take(f"<{length}s")
            magic, _, _, _, dimensions, code, bits, _ = take("<QQiiiBBH")
            if magic != TENSOR_MAGIC or not 0 <= dimensions <= 64:
                raise BadFile("has a damaged header")
            *shape, stored = take(f"<{dimensions}qq")
            if stored != math.prod(shape) * bits // 8:
                raise BadFile("has a damaged header")
            types[name.decode(errors="replace")] = f"{TYPE_NAMES.get(code, f'type{code}-')}{bits}"
            if file.seek(stored, os.SEEK_CUR) > size:
                raise BadFile(f"is cut off: it ends at byte {size}, inside {name.decode(errors='replace')!r}")
        if file.tell() != size:
            raise BadFile(f"has {size - file.tell()} bytes too many")
    return types


def _checksums(part: Part, plan: JobPlan, seconds: float) -> Finding:
    """Compare with the manifest. What the job will unpickle comes first, and is compared however long it takes."""
    files = [part.config, *part.files.values()]
    total = sum(path.stat().st_size for path in files)
    known = [path for path in files if path in part.manifest]
    if not known:
        detail = f"part {part.index}: {len(files)} files there, {total / 1e6:.1f} MB; no manifest.json with checksums"
        return Finding("partition", OK, detail)
    unpickled = part.files.get(GRAPHBOLT) if _asks_for_graphbolt(plan) else None
    known.sort(key=lambda path: (path != unpickled, path.stat().st_size))
    deadline = time.monotonic() + seconds
    for done, path in enumerate(known):
        if path != unpickled and time.monotonic() + path.stat().st_size / 1e9 > deadline:
            left = ", ".join(p.name for p in known[done:])
            return Finding("partition", SKIP, f"all sizes are right; checksums take longer than {seconds:g} s: {left}")
        if sha256_of(path) != part.manifest[path]["sha256"]:
            detail = f"{path} has other content than when it was written (checksum)"
            return Finding("partition", FAIL, detail, REPAIR)
    return Finding("partition", OK, f"part {part.index}: {len(files)} files, {total / 1e6:.1f} MB, checksums right")


def _asks_for_graphbolt(plan: JobPlan) -> bool:
    """GraphBolt is asked for in the script (``initialize(use_graphbolt=True)``); a command line may show it."""
    return any(word.lower().replace("-", "_").startswith("__use_graphbolt") for word in plan.command)


def _formats(part: Part, plan: JobPlan) -> Finding:
    """Is the format there? A GraphBolt file without a checksum of ours may be anybody's: allowed, and announced."""
    asked, structure, graphbolt = _asks_for_graphbolt(plan), STRUCTURE in part.files, GRAPHBOLT in part.files
    there = " and ".join(name for name, has in [("DGL", structure), ("GraphBolt", graphbolt)] if has)
    if asked and not graphbolt:
        remedy = (
            "Partition with use_graphbolt=True, or convert: dgl.distributed.dgl_partition_to_graphbolt(part_config)"
        )
        return Finding("partition format", FAIL, "the command asks for GraphBolt; the part has DGL's only", remedy)
    if not structure and not asked:
        detail = f"the part has no DGL structure ({there or 'none at all'})"
        return Finding("partition format", FAIL, detail, "Let the script call initialize(..., use_graphbolt=True).")
    path = part.files.get(GRAPHBOLT)
    if path is None or path in part.manifest:
        return Finding("partition format", OK, there)
    when = "" if asked else "if the script calls initialize(use_graphbolt=True), "
    detail = f"{there}; no manifest.json has a checksum of {path}: {when}DGL unpickles it, which can run any code"
    return Finding("partition format", OK, detail, "Use such a file only if you, or somebody you trust, made it.")


def _dtypes(part: Part) -> Finding:
    """bfloat16 is partitioned without a word; the server then dies of ``Do not know how to handle type bfloat16``."""
    types: dict[str, str] = {}
    for key in FEATURES:
        types |= tensor_types(part.files[key]) if key in part.files else {}
    bad = [f"{name} is {kind}" for name, kind in types.items() if kind not in HELD_BY_SERVERS]
    if bad:
        remedy = "Convert before partitioning: graph.ndata[NAME] = graph.ndata[NAME].float()"
        return Finding("feature types", FAIL, f"{', '.join(bad)}, which a DGL server cannot hold", remedy)
    return Finding("feature types", OK, ", ".join(f"{name} {kind}" for name, kind in types.items()) or "no features")


def shm_bytes_needed(plan: JobPlan, index: int) -> int:
    """Bytes that the servers of machine ``index`` put into /dev/shm, from file sizes, and what the plan's trainers add.

    Measured with DGL 2.1.0: the features as they are, and with one format (``csc``) as much as graph.dgl has.
    Backup servers share all of it. Raises BadFile where ``read_part`` does.
    """
    part = read_part(Path(plan.part_config), index, len(plan.machines))
    sizes = {key: path.stat().st_size for key, path in part.files.items() if path.is_file()}
    formats = len(plan.graph_format.split(","))
    structure = sizes.get(STRUCTURE, sizes.get(GRAPHBOLT, 0)) * (1 + FORMAT_SHARE * (formats - 1))
    return int(structure) + sum(sizes.get(key, 0) for key in FEATURES) + plan.shm_of_trainers
