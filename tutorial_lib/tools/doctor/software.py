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

from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding, verdict
from tutorial_lib.compat.graphbolt_stub import built_for

REMAKE = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."
EXPECTED = {"dgl": "2.1.0", "torch": "2.2.1", "torchdata": "0.7.1", "numpy": "1."}
# What each tested stack has besides torch; torchdata is for GraphBolt only, which the modern one has not.
STACKS = {"2.2.1": EXPECTED, "2.13": {"dgl": "2.1.0", "torch": "2.13.", "torchdata": "", "numpy": "2."}}
NAMES = {"2.2.1": "default", "2.13": "modern"}
LEAST_TORCH = (2, 0)
NUMPY_2_TORCH = (2, 3)  # torch built before it cannot exchange arrays with numpy 2
# Modules that dgl imports and whose packages its wheel does not ask for.
UNDECLARED = {"pandas": "pandas", "yaml": "pyyaml", "pydantic": "pydantic", "packaging": "packaging"}
IMPORT_SECONDS = 60
IMPORT = """
from tutorial_lib.compat.stack import graphbolt_problem, import_dgl
import_dgl().graph(([0, 1], [1, 0])).in_degrees()
print("without" if graphbolt_problem() else "with")
"""


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


def _known_stack() -> str | None:
    return next((known for known in STACKS if f"{_torch()}.".startswith(f"{known}.")), None)


def packages() -> Iterator[Finding]:
    """The versions that ``import dgl`` itself depends on: those of a tested stack."""
    known = _known_stack()
    for name, prefix in (STACKS[known] if known else EXPECTED).items():
        found = _version(name)
        if found is None:
            yield Finding(name, FAIL, "not installed", REMAKE)
        elif known is None and name in ("torch", "torchdata", "numpy"):
            yield _untested(name, found)
        else:
            yield verdict(found.startswith(prefix), name, found, f"Expected {prefix}*. {REMAKE}")


def _untested(name: str, found: str) -> Finding:
    """A version that belongs to no tested stack: what is known to fail, and what may work."""
    numbers = _numbers(_torch())
    if name == "torch" and numbers < LEAST_TORCH:
        return Finding(name, FAIL, found, f"DGL 2.1.0 is for torch 2. {REMAKE}")
    if name == "numpy" and numbers < NUMPY_2_TORCH and _numbers(found) >= (2,):
        return Finding(name, FAIL, found, f"torch {_torch()} needs numpy 1. {REMAKE}")
    return Finding(name, SKIP, f"{found}: of no stack that was tested here (torch {' or '.join(STACKS)})")


def stack() -> Iterator[Finding]:
    """Which of the tested stacks this is, by its torch, and what it lacks."""
    version, known = _torch(), _known_stack()
    lacks = "" if _graphbolt_library() else ", without GraphBolt"
    if version is None:
        yield Finding("stack", SKIP, "torch is not installed")
    elif known is None:
        yield Finding("stack", SKIP, f"torch {version}{lacks}: not tested; `make run` and `make run STACK=modern` are")
    else:
        yield Finding("stack", OK, f"{NAMES[known]} (torch {version}{lacks})")


def _torch() -> str | None:
    """Version of torch without its build (+cpu); None where it is not installed."""
    version = _version("torch")
    return version and version.split("+")[0]


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])


def _graphbolt_library() -> Path | None:
    dgl = _folder("dgl")
    library = dgl / "graphbolt" / f"libgraphbolt_pytorch_{_torch()}.so" if dgl else None
    return library if library and library.exists() else None


def graphbolt() -> Iterator[Finding]:
    """DGL looks for a library named after the torch version, and fails to import without it (dmlc/dgl #7157).

    With tutorial_lib it loads without GraphBolt then, see ``graphbolt_stub``; nothing else in DGL needs it.
    """
    torch, dgl = _torch(), _folder("dgl")
    if torch is None or dgl is None:
        yield Finding("graphbolt", SKIP, "torch or dgl is not installed")
    elif _graphbolt_library():
        yield Finding("graphbolt", OK, f"library for torch {torch} found")
    else:
        known = ", ".join(built_for([str(dgl)]))
        detail = f"no library for torch {torch} (there is one for {known}): DGL is loaded without GraphBolt"
        yield Finding("graphbolt", SKIP, f"{detail}; lesson 08 and use_graphbolt=True need it, nothing else does")


def datapipes() -> Iterator[Finding]:
    """``dgl.graphbolt`` imports ``torchdata.datapipes``, which torchdata 0.10 took out."""
    torchdata = _folder("torchdata")
    good = torchdata is not None and (torchdata / "datapipes").is_dir()
    detail = f"torchdata {'has' if good else 'has no'} datapipes"
    if torchdata is None:
        yield Finding("datapipes", SKIP, "torchdata is not installed")
    elif not good and not _graphbolt_library():
        yield Finding("datapipes", SKIP, f"{detail}; only GraphBolt uses them")
    else:
        yield verdict(good, "datapipes", detail, REMAKE)


def undeclared() -> Iterator[Finding]:
    """What dgl imports without asking pip for it."""
    missing = [package for module, package in UNDECLARED.items() if importlib.util.find_spec(module) is None]
    detail = f"{', '.join(missing)} not installed" if missing else f"{', '.join(UNDECLARED.values())} found"
    yield verdict(not missing, "other packages", detail, f"dgl imports them without declaring them. {REMAKE}")


def variables() -> Iterator[Finding]:
    """What an earlier job or another tutorial may have left in the shell."""
    backend, mode = os.environ.get("DGLBACKEND", "pytorch"), os.environ.get("DGL_DIST_MODE", "standalone")
    stray = sorted(name for name in os.environ if name.startswith("DGL_"))
    if backend != "pytorch":
        yield Finding("variables", FAIL, f"DGLBACKEND is {backend}; DistDGL is for pytorch only", "unset DGLBACKEND")
    elif mode != "standalone":
        remedy = "Your own Python would wait for servers: unset DGL_DIST_MODE DGL_ROLE"
        yield Finding("variables", FAIL, f"DGL_DIST_MODE is {mode}", remedy)
    else:
        note = f"{', '.join(stray)} set in your shell; a job sets its own" if stray else "no DGL_* is set"
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
        yield Finding("gpus", SKIP, f"{detail}; train --device cuda samples on the CPU, its layers are plain torch")
    else:
        detail = f"{many}, torch for CUDA {torch}, dgl {dgl}"
        yield Finding("gpus", OK, f"{detail}; train --device cuda samples on the CPU, its layers are DGL's")


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
        bolt = "without" if done.stdout.strip().endswith("without") else "with"
        yield Finding("import dgl", OK, f"works, with dgl.distributed, {bolt} dgl.graphbolt")
        return
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
    yield Finding("import dgl", FAIL, said[-1] if said else how, REMAKE)
