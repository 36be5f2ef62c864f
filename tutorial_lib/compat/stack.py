"""``import dgl`` with any version of torch.

DGL 2.1.0 contains a GraphBolt library for a few torch versions, and ``import dgl`` fails with others (dmlc/dgl #7157).
``install`` adds a finder that replaces ``dgl.graphbolt`` if it cannot be loaded. The finder also hides the package
``outdated`` from ogb 1.3.6, which asks the web for newer versions in a thread that delays the end of the process.

The package installs the finder, and so does the hook in every process of a job. The hook loads this file alone, before
torch, so the file imports the standard library only.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from glob import glob
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "dgl.graphbolt"


def graphbolt_problem() -> str | None:
    """Return the reason why GraphBolt is missing, or None. Imports DGL."""
    importlib.import_module("dgl.distributed")
    return spec.loader_state if (spec := sys.modules[NAME].__spec__) else None


def built_for(dgl_path: Iterable[str]) -> list[str]:
    """Return the torch versions with a GraphBolt library in the folders of the package ``dgl``, oldest first."""
    found = set()
    for folder in filter(None, [*dgl_path, *os.environ.get("DGL_LIBRARY_PATH", "").split(os.pathsep)]):
        names = glob("libgraphbolt_pytorch_*.so", root_dir=os.path.join(folder, "graphbolt"))
        found |= {name.removeprefix("libgraphbolt_pytorch_").removesuffix(".so") for name in names}
    return sorted(found, key=lambda version: [int(part) for part in version.split(".") if part.isdigit()])


def problem(dgl_path: Iterable[str]) -> str | None:
    """Return the reason why ``dgl.graphbolt`` cannot be loaded, or None. See ``built_for`` for ``dgl_path``."""
    import torch  # `import dgl` imports torch first

    version, known = str(torch.__version__).split("+")[0], built_for(dgl_path)
    if version not in known:
        return f"this DGL has a GraphBolt library for torch {', '.join(known) or '(none)'}, and this is torch {version}"
    with contextlib.suppress(ImportError):
        if importlib.util.find_spec("torchdata.datapipes"):
            return None
    return "dgl.graphbolt needs torchdata.datapipes, which torchdata has before 0.10 (the course pins 0.7.1)"


class MissingGraphBolt(ModuleType):
    """Replaces ``dgl.graphbolt``. Each use raises an ImportError with the reason, the ``loader_state`` of its spec."""

    class FusedCSCSamplingGraph:
        """A class without instances. A DGL server checks with ``isinstance`` whether a graph belongs to it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name.endswith("_"):  # Python and notebooks look for names like _repr_html_
            raise AttributeError(name)
        # An AttributeError would lose the reason in ``from dgl.graphbolt import ItemSet``.
        raise ImportError(f"{self.__name__}.{name} is not there: {vars(self)['__spec__'].loader_state}")


class Finder(Loader):
    """Replaces ``dgl.graphbolt`` if it cannot be loaded, and hides ``outdated`` from ogb."""

    tutorial_lib_finder = True  # the hook and the package load this file twice

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return a specification of the replacement, or None to leave the import to Python."""
        asking = getattr(sys.modules.get("ogb.version"), "__spec__", None)
        if name == "outdated" and getattr(asking, "_initializing", False):
            raise ModuleNotFoundError("ogb does not ask for newer versions of itself here", name=name)
        if name == NAME and (why := problem(path or [])):
            return ModuleSpec(name, self, loader_state=why, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = MissingGraphBolt


def install() -> None:
    """Add the finder before Python's finders, unless it is installed already."""
    if not any(hasattr(finder, "tutorial_lib_finder") for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
