"""What ``import dgl`` needs: Python, versions, libraries, variables; read from files, nothing is imported here.

Only ``import_dgl`` tries the real thing, in a child with a time limit.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.findings import FAIL, OK, SKIP, Finding, verdict

REMAKE = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."
EXPECTED = {"dgl": "2.1.0", "torch": "2.2.1", "torchdata": "0.7.1", "numpy": "1."}
# Modules that dgl imports and whose packages its wheel does not ask for.
UNDECLARED = {"pandas": "pandas", "yaml": "pyyaml", "pydantic": "pydantic", "packaging": "packaging"}
IMPORT_SECONDS = 60
IMPORT = "import tutorial_lib, dgl, dgl.distributed, dgl.graphbolt; dgl.graph(([0, 1], [1, 0])).in_degrees()"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _folder(name: str) -> Path | None:
    """Where a package is installed, without importing it."""
    try:
        return Path(str(importlib.metadata.distribution(name).locate_file(name)))
    except importlib.metadata.PackageNotFoundError:
        return None


def python() -> Iterator[Finding]:
    """On 3.13 pip silently installs a dgl of 2018."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    good = (3, 10) <= sys.version_info[:2] <= (3, 12)
    yield verdict(good, "python", found, "DGL 2.1.0 exists for Python 3.10 to 3.12; on 3.13 pip installs dgl 0.1.3.")


def packages() -> Iterator[Finding]:
    """The versions that ``import dgl`` itself depends on."""
    for name, prefix in EXPECTED.items():
        found = _version(name)
        if found is None:
            yield Finding(name, FAIL, "not installed", REMAKE)
        else:
            yield verdict(found.startswith(prefix), name, found, f"Expected {prefix}*. {REMAKE}")


def graphbolt() -> Iterator[Finding]:
    """DGL looks for a library named after the torch version, and fails to import without it (dmlc/dgl #7157)."""
    torch, dgl = _version("torch"), _folder("dgl")
    if torch is None or dgl is None:
        yield Finding("graphbolt", SKIP, "torch or dgl is not installed")
        return
    torch = torch.split("+")[0]
    library = dgl / "graphbolt" / f"libgraphbolt_pytorch_{torch}.so"
    known = sorted(path.stem.rsplit("_", 1)[1] for path in library.parent.glob("libgraphbolt_pytorch_*.so"))
    detail = f"library for torch {torch} " + ("found" if library.exists() else "is missing")
    yield verdict(library.exists(), "graphbolt", detail, f"This dgl has it for torch {', '.join(known)}. {REMAKE}")


def datapipes() -> Iterator[Finding]:
    """``dgl.graphbolt`` imports ``torchdata.datapipes``, which torchdata 0.10 took out."""
    torchdata = _folder("torchdata")
    if torchdata is None:
        yield Finding("datapipes", SKIP, "torchdata is not installed")
        return
    good = (torchdata / "datapipes").is_dir()
    yield verdict(good, "datapipes", f"torchdata {'has' if good else 'has no'} datapipes", REMAKE)


def undeclared() -> Iterator[Finding]:
    """What dgl imports without asking pip for it."""
    missing = [package for module, package in UNDECLARED.items() if importlib.util.find_spec(module) is None]
    detail = f"{', '.join(missing)} not installed" if missing else f"{', '.join(UNDECLARED.values())} found"
    yield verdict(not missing, "other packages", detail, f"dgl imports them without declaring them. {REMAKE}")


def variables() -> Iterator[Finding]:
    """What an earlier job or another tutorial may have left in the shell."""
    backend = os.environ.get("DGLBACKEND", "pytorch")
    if backend != "pytorch":
        yield Finding("variables", FAIL, f"DGLBACKEND is {backend}; DistDGL is for pytorch only", "unset DGLBACKEND")
        return
    stray = sorted(name for name in os.environ if name.startswith("DGL_"))
    note = f"{', '.join(stray)} set in your shell; a job sets its own" if stray else "no DGL_* is set"
    if os.environ.get("DGL_DIST_MODE", "standalone") != "standalone":
        remedy = "Your own Python would wait for servers: unset DGL_DIST_MODE DGL_ROLE"
        yield Finding("variables", FAIL, f"DGL_DIST_MODE is {os.environ['DGL_DIST_MODE']}", remedy)
        return
    yield Finding("variables", OK, note)


def gpus() -> Iterator[Finding]:
    """Whether the builds of torch and dgl can use the GPUs that are here. Without GPUs, everything runs on CPUs."""
    devices = gpu_devices()
    if not devices:
        yield Finding("gpus", SKIP, "this computer has none that a driver shows; everything runs on the CPUs")
        return
    torch, dgl = _cuda_of_torch(), _version("dgl")
    many = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''}"
    if torch is None:
        remedy = "Install the CUDA build of the same torch version."
        yield Finding("gpus", FAIL, f"{many}, but torch is not there or a build without CUDA", remedy)
    elif dgl is None or "+cu" not in dgl:
        detail = f"{many}, torch for CUDA {torch}, but PyPI's dgl is a CPU build: no graph can be put on a GPU"
        yield Finding("gpus", SKIP, f"{detail}; sampling is on the CPU in any case, dense layers may use the GPU")
    else:
        yield Finding("gpus", OK, f"{many}, torch for CUDA {torch}, dgl {dgl}")


def gpu_devices() -> list[str]:
    """Names of the NVIDIA devices that the driver made."""
    return sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))


def _cuda_of_torch() -> str | None:
    folder = _folder("torch")
    text = (folder / "version.py").read_text() if folder and (folder / "version.py").exists() else ""
    match = re.search(r"^cuda\b[^=]*= *'([^']+)'", text, flags=re.MULTILINE)
    return match[1] if match else None


def import_dgl(code: str = IMPORT, seconds: float = IMPORT_SECONDS) -> Iterator[Finding]:
    """The real thing, in a child: it may fail in many ways, crash, or hang."""
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        yield Finding("import dgl", FAIL, f"did not end within {seconds:g} s", f"Try it by hand: {sys.executable}")
        return
    if done.returncode == 0:
        yield Finding("import dgl", OK, "works, with dgl.distributed and dgl.graphbolt")
        return
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
    yield Finding("import dgl", FAIL, said[-1] if said else how, REMAKE)
