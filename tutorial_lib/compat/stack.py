"""``import dgl`` with any version of torch.

DGL 2.1.0 contains a GraphBolt library for a few torch versions, and ``import dgl`` fails with others (dmlc/dgl #7157).
The package installs a finder that replaces ``dgl.graphbolt`` in this case, and so does the hook in every process of a
job. The hook loads this file alone, so the file imports the standard library only.
"""

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NoReturn

NAME = "dgl.graphbolt"


def find_package_folders(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []


def graphbolt_problem(dgl_folders: Iterable[str] | None = None) -> str | None:
    """Return the reason why ``dgl.graphbolt`` cannot be loaded, or None. Imports neither torch nor DGL."""
    folders = find_package_folders("dgl") if dgl_folders is None else dgl_folders
    paths = [path for folder in folders for path in Path(folder, "graphbolt").glob("libgraphbolt_pytorch_*.so")]
    built = sorted(path.stem.rpartition("_")[2] for path in paths)
    loaded = sys.modules.get("torch")
    torch = str(loaded.__version__ if loaded else version("torch")).split("+")[0]
    if torch not in built:
        return f"this DGL has a GraphBolt library for torch {', '.join(built) or '(none)'}, but this is torch {torch}"
    if any(Path(folder, "datapipes").is_dir() for folder in find_package_folders("torchdata")):
        return None
    return "dgl.graphbolt needs torchdata.datapipes, which torchdata 0.10 removed (the course pins 0.7.1)"


class MissingGraphBolt(ModuleType):
    """Replaces ``dgl.graphbolt``. Each use raises an ImportError with the reason, the ``loader_state`` of its spec."""

    class FusedCSCSamplingGraph:
        """A class without instances. A DGL server checks with ``isinstance`` whether a graph belongs to it."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") and name.endswith("_"):  # Python and notebooks look for names like _repr_html_
            raise AttributeError(name)
        # An AttributeError would lose the reason in ``from dgl.graphbolt import ItemSet``.
        raise ImportError(f"{self.__name__}.{name} is not available: {vars(self)['__spec__'].loader_state}")


class Finder(Loader):
    """Replaces ``dgl.graphbolt`` if it cannot be loaded, and hides ``outdated`` from ogb, which DGL imports.

    With this package, ogb looks for newer versions on the web in a thread, which delays the end of the process.
    """

    tutorial_lib_finder = True  # ``install`` looks for this name, because two copies of this class can exist

    def find_spec(self, name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        importer = getattr(sys.modules.get("ogb.version"), "__spec__", None)
        if name == "outdated" and getattr(importer, "_initializing", False):
            raise ModuleNotFoundError("ogb does not ask for newer versions of itself here", name=name)
        if name == NAME and (reason := graphbolt_problem(path or [])):
            return ModuleSpec(name, self, loader_state=reason, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = MissingGraphBolt


def install() -> None:
    """Insert the finder at the front of ``sys.meta_path``. Further calls have no effect."""
    if not any(hasattr(finder, "tutorial_lib_finder") for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
