"""Open copies of the notebooks in JupyterLab, which can open every file of the repository, at lesson 00.

    python scripts/lab.py [--port 8888] [--fresh]

The script copies the notebooks and the programs that they write to work/, which git ignores, so the checkout stays
unchanged. Links in the copies lead to the same places. An unchanged copy follows its original, and a changed copy
stays. --fresh replaces all copies and keeps the changed ones next to them.
"""

import argparse
import contextlib
import getpass
import hashlib
import json
import os
import re
import socket
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "work/00_start_here.ipynb"
# Settings of JupyterLab in the environment of the course. The settings of the user stay unchanged.
OVERRIDES = {
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/toc-extension:registry": {"maximalDepth": 3},
}
CONTENTS = "@jupyterlab/toc:plugin"  # the name of the table of contents in JupyterLab's layouts
PANELS = ["filebrowser", "running-sessions", CONTENTS, "extensionmanager.main-view"]


def checksum(content: bytes) -> str:
    """Return a checksum without the empty lines at the end, because a cell that writes a program removes one."""
    return hashlib.sha256(content.rstrip()).hexdigest()


def read_originals(notebooks: Path) -> dict[str, bytes]:
    """Return the files to copy by their name in work/: lessons, solutions, pages, and the programs of the lessons.

    A solution gets another name than its lesson, because JupyterLab shows the names in its tabs. Links use this name.
    """
    programs = [path for path in notebooks.glob("scripts/**/*") if path.is_file()]
    outputs = ("scripts/out/", "scripts/exercise_")  # files that lessons wrote next to the originals
    contents = {}
    for path in [*notebooks.glob("*.ipynb"), *notebooks.glob("*.md"), *notebooks.glob("solutions/*.ipynb"), *programs]:
        name = path.relative_to(notebooks).as_posix()
        if name.startswith(outputs) or "__pycache__" in name or re.match(r"scripts/mine/.*\.(py|sbatch)$", name):
            continue
        content = path.read_bytes()
        if path.suffix != ".py":
            content = re.sub(rb"\((?:\./)?solutions/(\w+)\.ipynb", rb"(solutions/\1_solution.ipynb", content)
        contents[re.sub(r"^solutions/(\w+)\.ipynb$", r"solutions/\1_solution.ipynb", name)] = content
    return contents


def refresh_copies(notebooks: Path, work: Path, *, fresh: bool = False) -> list[str]:
    """Copy the notebooks and programs, and return the names of changed copies whose originals have also changed.

    A copy is removed if its original no longer exists, unless the copy was changed.

    Args:
        fresh: replace all copies, and rename the changed ones with the time.
    """
    known_file = work / ".copied.json"
    known = json.loads(known_file.read_text()) if known_file.exists() else {}
    behind, sources = [], read_originals(notebooks)
    for name in sorted({*sources, *known}):
        copy, wanted = work / name, checksum(sources.get(name, b""))
        now = checksum(copy.read_bytes()) if copy.exists() else None
        changed = now is not None and now not in (known.get(name), wanted)
        if name not in sources:
            del known[name]
            if not changed:
                copy.unlink(missing_ok=True)
            continue
        if changed and fresh:
            copy.rename(copy.with_stem(f"{copy.stem}-{time.strftime('%Y%m%d-%H%M%S')}"))
        elif changed:
            if known.get(name) != wanted:
                behind.append(name)
            continue
        if changed or now != wanted:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(sources[name])
        known[name] = wanted
    if (notebooks / "solutions" / "scripts").is_symlink() and not (work / "solutions" / "scripts").exists():
        (work / "solutions" / "scripts").symlink_to("../scripts")
    known_file.write_text(json.dumps(known, indent=1))
    return behind


def prepare_jupyterlab(workspaces: Path) -> None:
    """Write the settings (no news dialog) and the first layout (the table of contents next to the notebook)."""
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    settings = Path(sysconfig.get_path("data"), "share", "jupyter", "lab", "settings")
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(OVERRIDES, indent=1))
    if not workspaces.exists():  # otherwise it is the layout that the learner has arranged
        left = {"collapsed": False, "visible": True, "current": CONTENTS, "widgets": PANELS}
        layout = {"main": {"dock": None}, "left": left, "relativeSizes": [0.2, 0.8, 0]}
        raw = json.dumps({"data": {"layout-restorer:data": layout}, "metadata": {"id": "course"}})
        WorkspacesManager(str(workspaces)).save("course", raw)


def find_free_port(first: int) -> int:
    """Return the first of twenty ports that is not in use."""
    for port in range(first, first + 20):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise SystemExit(f"ports {first} to {first + 19} are in use. Choose another port with --port.")


def describe_tunnel(port: int) -> str:
    """Return the advice for a machine without a display."""
    host = f"{getpass.getuser()}@{socket.gethostname()}"
    return (
        f"This machine has no display. Run on your computer:  ssh -N -L {port}:localhost:{port} {host}\n"
        "Then open the address with the token below in a browser on your computer."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8888, help="first port to try")
    parser.add_argument(
        "--fresh", action="store_true", help="replace all copies, and keep the changed ones under another name"
    )
    options = parser.parse_args()
    port, work = find_free_port(options.port), ROOT / "work"
    for name in refresh_copies(ROOT / "notebooks", work, fresh=options.fresh):
        print(f"work/{name}: you have changed this copy, and it has a new version. Use --fresh to get it.")
    workspaces = work / ".workspaces"
    prepare_jupyterlab(workspaces)
    display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("WSL_DISTRO_NAME"))
    if not display:
        print(describe_tunnel(port), flush=True)
    words = [
        *(sys.executable, "-m", "jupyterlab", f"--port={port}", f"--ServerApp.root_dir={ROOT}"),
        *(f"--LabApp.workspaces_dir={workspaces}", f"--LabApp.default_url=/lab/workspaces/course/tree/{FIRST}"),
        "--LanguageServerManager.autodetect=False",  # messages of a language server cover the menu
        *([] if display else ["--no-browser"]),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    # In a cell, `!python` and `!torchrun` start the programs of the course, even if its environment is not activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise the first import prints the selected backend
    os.chdir(ROOT)
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
