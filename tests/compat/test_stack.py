"""``import dgl`` works with any torch, and with GraphBolt if DGL has a library for it. Both stacks run these tests."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tutorial_lib
from tutorial_lib.compat import stack
from tutorial_lib.partition import partition_dataset

HOOK = Path(tutorial_lib.__file__).parent / "launcher" / "hook"
STARTUP = {"TUTORIAL_STARTUP_FILES": str(HOOK.parents[1] / "job" / "dgl_hook.py")}
# DGL reads only torch.__version__, so this looks like a future version of torch.
OTHER_TORCH = "import torch; torch.__version__ = '9.9.9+cpu'\n"
HAS_LIBRARY = torch.__version__.split("+")[0] == "2.2.1"


def python(code: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TUTORIAL_", "PYTHONPATH"))
    }
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,  # as the agent starts a server
    )


@pytest.fixture
def fake_dgl(tmp_path, monkeypatch) -> str:
    """Return the folder of a ``dgl`` with GraphBolt libraries for two versions of torch."""
    (tmp_path / "graphbolt").mkdir()
    for name in ("libgraphbolt_pytorch_2.2.1.so", "libgraphbolt_pytorch_2.0.0.so", "base.py"):
        (tmp_path / "graphbolt" / name).touch()
    (tmp_path / "datapipes").mkdir()
    monkeypatch.setattr(stack, "find_package_folders", lambda _package: [tmp_path])
    return str(tmp_path)


def test_real_graphbolt_is_imported_if_its_library_exists(fake_dgl, monkeypatch):
    for version in ("2.2.1", "2.2.1+cu121", "2.0.0"):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
        assert stack.Finder().find_spec("dgl.graphbolt", [fake_dgl]) is None
    monkeypatch.setattr(stack, "find_package_folders", lambda _package: [])
    assert "torchdata.datapipes" in stack.graphbolt_problem([fake_dgl])


def test_missing_graphbolt_raises_with_versions(fake_dgl, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0+cpu"))
    spec = stack.Finder().find_spec("dgl.graphbolt", [fake_dgl])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "dgl.graphbolt", module)
    words = r"is not available: this DGL has a GraphBolt library for torch 2.0.0, 2.2.1, but this is torch 2.13.0"
    for use in (lambda: module.ItemSet, lambda: exec("from dgl.graphbolt import ItemSet", {})):
        with pytest.raises(ImportError, match=words):
            use()
    assert not hasattr(module, "_repr_html_")  # Python and notebooks look for such names
    assert not isinstance(3, module.FusedCSCSamplingGraph)  # a DGL server checks this for each graph


def test_graphbolt_files_exist_if_graphbolt_is_available(small_dataset, tmp_path):
    assert (stack.graphbolt_problem() is None) is HAS_LIBRARY
    partition = partition_dataset(small_dataset, 2, tmp_path / "parts", method="random")
    assert ("part0/fused_csc_sampling_graph.pt" in partition.manifest["files"]) is HAS_LIBRARY


@pytest.mark.parametrize("before", ["", OTHER_TORCH])
def test_import_dgl_in_a_notebook_prints_no_warning(before):
    """After ``import tutorial_lib``, ``import dgl`` works with any version of torch."""
    code = "import tutorial_lib, dgl, dgl.distributed, dgl.nn; print(dgl.graph(([0, 1], [1, 0])).num_edges())"
    done = python(before + code, PYTHONWARNINGS="default")
    assert done.stdout == "2\n", done.stderr
    noise = [line for line in done.stderr.splitlines() if "Warning" in line and "DeprecationWarning" not in line]
    assert noise == []


def test_launched_script_does_not_import_tutorial_lib(tmp_path):
    """Every process of a job loads the hook."""
    code = OTHER_TORCH + (
        "import sys, dgl, dgl.distributed; print('tutorial_lib' in sys.modules)\n"
        "try:\n    dgl.graphbolt.ItemSet\n"
        "except ImportError as error: print(error)"
    )
    done = python(code, PYTHONPATH=str(HOOK), TUTORIAL_LOG_DIR=str(tmp_path), **STARTUP)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "False"
    assert second.startswith(
        "dgl.graphbolt.ItemSet is not available: this DGL has a GraphBolt library for torch 2.0.0, "
    )


def test_program_outside_a_job_can_import_dgl():
    """Lessons start such programs in the environments of ``make``. There, the hook changes nothing."""
    code = "import sys; print(sum(hasattr(f, 'tutorial_lib_finder') for f in sys.meta_path))\n"
    code += "import dgl; print('tutorial_lib' in sys.modules, dgl.graph(([0], [0])).num_edges())"
    finders, imported = python(code, PYTHONPATH=str(HOOK)).stdout.splitlines()[-2:]
    assert imported == "False 1"
    assert not HAS_LIBRARY or finders == "0"


CLOCK = """
import time
from dgl.distributed import rpc_client, rpc_server
slept = []
time.sleep = slept.append
for seconds in (3, 1):
    rpc_server.time.sleep(seconds)
print(slept, rpc_server.time.monotonic is time.monotonic, rpc_client.time is time)
"""
SOON = "from tutorial_lib.compat.settings import shorten_server_sleep; shorten_server_sleep()\n"


@pytest.mark.parametrize(("before", "slept"), [(SOON, "[0.3, 1]"), ("", "[3, 1]")])
def test_only_servers_of_tutorial_lib_poll_faster(tmp_path, before, slept):
    """Scripts under ``launch`` use an unchanged DGL, also in the server process."""
    job = {"TUTORIAL_LOG_DIR": str(tmp_path), "TUTORIAL_INDEX": "0", "TUTORIAL_ROLE": "server"}
    job["TUTORIAL_RANKED"] = "0"
    done = python(before + CLOCK, PYTHONPATH=str(HOOK), **job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{slept} True True"
    assert [path.name.split("-")[:2] for path in (tmp_path / ".processes").iterdir()] == [["server", "0"]]


ASKS = "try:\n    from outdated import asked\nexcept ImportError:\n    asked = None\n"


@pytest.mark.parametrize("installed", ["import tutorial_lib\n", ""])
def test_only_ogb_cannot_import_outdated(tmp_path, installed):
    """All other modules can import ``outdated``. The hook does the same for a script."""
    (tmp_path / "ogb").mkdir()
    (tmp_path / "ogb" / "__init__.py").write_text("from ogb.version import asked\n")
    (tmp_path / "ogb" / "version.py").write_text(ASKS)
    (tmp_path / "outdated.py").write_text("asked = 'the web'\n")
    code = f"{installed}import ogb, outdated; print(ogb.asked, outdated.asked)"
    path = os.pathsep.join([str(HOOK), str(tmp_path)])
    assert python(code, PYTHONPATH=path, TUTORIAL_LOG_DIR=str(tmp_path), **STARTUP).stdout == "None the web\n"
