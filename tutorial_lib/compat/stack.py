"""Which torch and DGL this is, and ``import dgl`` on any torch: the one place where the package asks about its stack.

DGL 2.1.0 ships one GraphBolt library for each of a few torch versions, and ``import dgl`` itself fails with any other
torch (dmlc/dgl #7157). Nothing else in DGL needs it. ``install`` puts a finder in front of Python's own which takes
``dgl.graphbolt`` only where the real one cannot be loaded, and gives a stand-in: whoever uses it gets one error that
names the torch versions that would have it. Where the library is there, nothing changes.

``import dgl`` also imports ogb, which asks the web for newer versions of itself in a thread that a process waits for.
Checked on ogb 1.3.6, whose ``ogb/version.py`` does without the package ``outdated`` where that cannot be imported. So
it cannot be while that module is being imported; for everybody else ``outdated`` is what it was. An ogb that has no
such module, or does not ask, is left alone.

``tutorial_lib/__init__.py`` installs it, and ``cluster/hook/sitecustomize.py`` in every process of a job, so that a
script which says ``import dgl`` works unchanged. Standard library only: the hook loads this file alone, before torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

NAME = "dgl.graphbolt"
CLASS = f"{NAME}.FusedCSCSamplingGraph"
LIBRARY = ("libgraphbolt_pytorch_", ".so")  # the torch version stands between


def import_dgl() -> ModuleType:
    """DGL, with GraphBolt where it has a library for this torch, else without.

    Raises:
        InputError: DGL is not installed, or is not one that this package can load.
    """
    try:
        dgl = importlib.import_module("dgl")
        importlib.import_module("dgl.distributed")
    except ModuleNotFoundError as error:
        from tutorial_lib.errors import InputError

        raise InputError(f"DGL cannot be imported: {error}", "pip install -r requirements.lock") from error
    return dgl


def graphbolt_problem() -> str | None:
    """Why GraphBolt is not there, one sentence; None where it is. Imports DGL."""
    import_dgl()
    return sys.modules[NAME].__dict__.get("why_missing")


class GraphBoltMissing(ImportError):
    """GraphBolt was used, and this torch has none.

    Not an AttributeError: ``from dgl.graphbolt import ItemSet`` would turn that into a message that explains nothing.
    """


def built_for(dgl_path: Iterable[str]) -> list[str]:
    """Torch versions that there is a GraphBolt library for, oldest first.

    ``dgl_path``: folders of the package ``dgl`` (its ``__path__``); DGL_LIBRARY_PATH may name more.
    """
    start, end = LIBRARY
    found = set()
    for folder in [*dgl_path, *os.environ.get("DGL_LIBRARY_PATH", "").split(os.pathsep)]:
        libraries = os.path.join(folder, "graphbolt")
        if folder and os.path.isdir(libraries):
            found |= {name[len(start) : -len(end)] for name in os.listdir(libraries) if name.startswith(start)}
    return sorted(found, key=lambda version: [int(part) for part in version.split(".") if part.isdigit()])


def problem(dgl_path: Iterable[str]) -> str | None:
    """Why ``dgl.graphbolt`` cannot be loaded, one sentence; None where it can. ``dgl_path`` is as for ``built_for``."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    if version is None:
        from importlib.metadata import version as installed  # 20 ms, and a DGL that is being imported has loaded torch

        version = installed("torch")
    version, known = str(version).split("+")[0], built_for(dgl_path)
    if version not in known:
        return f"this DGL has a GraphBolt library for torch {', '.join(known) or '(none)'}, and this is torch {version}"
    if not _has_datapipes():
        return "dgl.graphbolt needs torchdata.datapipes, which torchdata has before 0.10 (the course pins 0.7.1)"
    return None


def _has_datapipes() -> bool:
    """Imports ``torchdata``, as dgl.graphbolt would do next."""
    try:
        return importlib.util.find_spec("torchdata.datapipes") is not None
    except ImportError:
        return False


class MissingGraphBolt(ModuleType):
    """Stands in for ``dgl.graphbolt``; every use of it is an error that says why.

    But for one: a DGL server asks each graph that it loads ``isinstance(graph, gb.FusedCSCSamplingGraph)``. So that
    class is there, as another stand-in, of which nothing is an instance.
    """

    __path__: list[str] = []  # noqa: RUF012  a package, so that `import dgl.graphbolt.impl` reaches our finder

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, "GraphBolt is not there; every use of it says why.")
        self.why_missing = why

    def __getattr__(self, name: str) -> MissingGraphBolt:
        whole, why = f"{self.__name__}.{name}", self.__dict__["why_missing"]
        if whole == CLASS:
            return MissingGraphBolt(CLASS, why)
        # Python itself, inspect, pickle and notebooks ask every object for names like __file__ or _repr_html_.
        if name.startswith("_") and name.endswith("_"):
            raise AttributeError(f"{whole} is not there")
        raise GraphBoltMissing(f"{whole} is not there: {why}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise GraphBoltMissing(f"{self.__name__} is not there: {self.why_missing}")

    def __instancecheck__(self, _instance: object) -> bool:
        return False


class Finder(Loader):
    """Makes ``dgl.graphbolt`` where it cannot be loaded, refuses ``outdated`` to ogb, and leaves the rest to Python."""

    tutorial_lib_finder = True  # the hook and the package load this file twice; one finder is enough
    why = ""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Called by Python for each import of a module that is not loaded yet."""
        asking = getattr(sys.modules.get("ogb.version"), "__spec__", None)
        if name == "outdated" and getattr(asking, "_initializing", False):
            raise ModuleNotFoundError("ogb does not ask for newer versions of itself here", name=name)
        parent = sys.modules.get(NAME)
        if name.startswith(f"{NAME}.") and parent and (why := parent.__dict__.get("why_missing")):
            raise GraphBoltMissing(f"{name} is not there: {why}", name=name)
        if name == NAME and (why := problem(path or [])):
            self.why = why
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> MissingGraphBolt:
        return MissingGraphBolt(spec.name, self.why)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Put the finder in front of the others; does nothing where it is there already."""
    if not any(hasattr(finder, "tutorial_lib_finder") for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
