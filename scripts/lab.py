"""Open the course in JupyterLab: at lesson 00, in copies of the notebooks, with the whole repository in reach.

    python scripts/lab.py [--port 8888] [--fresh]

The notebooks and the programs that they write (scripts/) are copied to work/, which git ignores, so that reading and
running leaves the checkout as it is; links from one to another and to the repository lead to the same places from
there. A copy that was not changed follows the original; one that was changed stays. --fresh puts all copies back, and
keeps the changed ones beside them.
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
# Of JupyterLab, in the environment of the course: nothing of the user's own is changed.
OVERRIDES = {
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/toc-extension:registry": {"maximalDepth": 3},
}
CONTENTS = "@jupyterlab/toc:plugin"  # the table of contents, as JupyterLab's layouts name it
PANELS = ["filebrowser", "running-sessions", CONTENTS, "extensionmanager.main-view"]


def digest(content: bytes) -> str:
    """Of a file, whatever empty lines it ends with: a cell that writes a program leaves one less."""
    return hashlib.sha256(content.rstrip()).hexdigest()


def originals(notebooks: Path) -> dict[str, bytes]:
    """What is copied, by its name in work/: lessons, solutions, pages, and the programs that the lessons write.

    A solution has another name there than its lesson, for JupyterLab shows names in its tabs; links follow.
    """
    programs = [path for path in notebooks.glob("scripts/**/*") if path.is_file()]
    aside = ("scripts/out/", "scripts/exercise_")  # what running has left beside the originals
    found = {}
    for path in [*notebooks.glob("*.ipynb"), *notebooks.glob("*.md"), *notebooks.glob("solutions/*.ipynb"), *programs]:
        name = path.relative_to(notebooks).as_posix()
        if name.startswith(aside) or "__pycache__" in name or re.match(r"scripts/mine/.*\.py$", name):
            continue
        content = path.read_bytes()
        if path.suffix != ".py":
            content = re.sub(rb"\((?:\./)?solutions/(\w+)\.ipynb", rb"(solutions/\1_solution.ipynb", content)
        found[re.sub(r"^solutions/(\w+)\.ipynb$", r"solutions/\1_solution.ipynb", name)] = content
    return found


def refresh_copies(notebooks: Path, work: Path, *, fresh: bool = False) -> list[str]:
    """Copy the notebooks, their solutions and programs; the names of changed copies whose originals have changed too.

    A copy whose original is gone goes too, unless it was changed.

    Args:
        fresh: put all copies back; a changed one is kept beside it, with the time in its name.
    """
    known_file = work / ".copied.json"
    known = json.loads(known_file.read_text()) if known_file.exists() else {}
    behind, sources = [], originals(notebooks)
    for name in sorted({*sources, *known}):
        copy, wanted = work / name, digest(sources.get(name, b""))
        now = digest(copy.read_bytes()) if copy.exists() else None
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
    """Settings and the first layout: no news dialog, the table of contents beside the notebook."""
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    settings = Path(sysconfig.get_path("data"), "share", "jupyter", "lab", "settings")
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(OVERRIDES, indent=1))
    if not workspaces.exists():  # later it is the learner's own
        left = {"collapsed": False, "visible": True, "current": CONTENTS, "widgets": PANELS}
        layout = {"main": {"dock": None}, "left": left, "relativeSizes": [0.2, 0.8, 0]}
        raw = json.dumps({"data": {"layout-restorer:data": layout}, "metadata": {"id": "course"}})
        WorkspacesManager(str(workspaces)).save("course", raw)


def free_port(first: int) -> int:
    """The first of twenty ports on which nobody listens."""
    for port in range(first, first + 20):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise SystemExit(f"ports {first} to {first + 19} are all in use; give another with --port")


def tunnel_advice(port: int) -> str:
    """For a machine without a display."""
    where = f"{getpass.getuser()}@{socket.gethostname()}"
    return (
        f"This machine has no display. On the one before you:  ssh -N -L {port}:localhost:{port} {where}\n"
        "then open there the address with the token that is printed below."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8888)
    parser.add_argument("--fresh", action="store_true", help="put all copies of notebooks back")
    options = parser.parse_args()
    port, work = free_port(options.port), ROOT / "work"
    for name in refresh_copies(ROOT / "notebooks", work, fresh=options.fresh):
        print(f"work/{name}: you have changed it, and there is a new version of it; --fresh takes that one")
    workspaces = work / ".workspaces"
    prepare_jupyterlab(workspaces)
    display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("WSL_DISTRO_NAME"))
    if not display:
        print(tunnel_advice(port), flush=True)
    words = [
        *(sys.executable, "-m", "jupyterlab", f"--port={port}", f"--ServerApp.root_dir={ROOT}"),
        *(f"--LabApp.workspaces_dir={workspaces}", f"--LabApp.default_url=/lab/workspaces/course/tree/{FIRST}"),
        "--LanguageServerManager.autodetect=False",  # it would find the type checker's, whose messages cover the menu
        *([] if display else ["--no-browser"]),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    # In a cell, `!python` and `!torchrun` are those of the course, also where its environment is not activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else the first import in a home folder prints which one it took
    os.chdir(ROOT)
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
