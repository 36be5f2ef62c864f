"""Private disks of emulated machines: folders of this computer's disk, mounted over the folders that machines share.

For example, ``/home/me`` is private and empty, the checkout ``/home/me/course`` with its .venv is read-only, and
``/home/me/course/runs`` and ``/home/me/course/data`` are private and empty.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tutorial_lib.launcher.backends import namespaces as ns

COPY_TO = "/tmp/tutorial"  # on the machines: /tmp is always one of the private folders
CHECKOUT = Path(__file__).resolve().parents[3]
LARGE_FILES = "/var/tmp"  # unlike /tmp, it is hardly ever in memory
_SYSTEM = ("", "bin", "dev", "etc", "lib", "lib64", "nix", "opt", "proc", "run", "sys", "usr", "var")  # in /, shared

Layer = tuple[str, bool]  # path of a folder, and whether it is private


def create_folder() -> Path:
    """Create the folder of a cluster on the disk of this computer. ``TMPDIR`` selects another disk."""
    parent = os.environ.get("TMPDIR", LARGE_FILES)
    return Path(tempfile.mkdtemp(prefix=f"tutorial_lib-{os.getuid()}-machines-", dir=parent))


def python_path(env: Mapping[str, str] = os.environ) -> str:
    """Return a ``PYTHONPATH`` with which a process in another folder imports this package."""
    return os.pathsep.join(filter(None, [str(CHECKOUT), env.get("PYTHONPATH")]))


def list_layers(more: Iterable[Path] = ()) -> list[Layer]:
    """Return the folders to mount, outer ones first.

    The home, the folders for temporary files, the working directory, and the folders ``data`` and ``runs`` of the
    checkout and of the working directory are private. The checkout and the folders of Python stay visible.

    Args:
        more: other private folders, such as the run folder. They are created if they do not exist.
    """
    here = Path.cwd()
    visible = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)}
    visible |= {Path(path) for path in sys.path if path.endswith("-packages")}
    program = Path(sys.executable)
    while program.is_symlink():  # each link and its target must stay visible
        visible.add(program.parent)
        program = program.parent / program.readlink()
    visible |= {path.resolve() for path in [*visible, program.parent]}
    private = {Path("/tmp"), Path(LARGE_FILES), Path(tempfile.gettempdir()), Path.home(), here / "runs", *more}
    if not CHECKOUT.name.endswith("-packages"):
        private |= {CHECKOUT / "data", CHECKOUT / "runs"}
    if not here.is_relative_to(CHECKOUT):
        private.add(here)
    private = {path.resolve() for path in private} - visible
    private = {path for path in private if path.parent != Path("/") or path.name not in _SYSTEM}
    for path in private:
        with contextlib.suppress(OSError):  # somebody else's folder
            path.mkdir(parents=True, exist_ok=True)
    layers = [(str(path), path in private) for path in private | visible if path.is_dir()]
    return sorted(layers, key=lambda layer: (layer[0].count("/"), layer))


def mount_disk(disk: str, layers: Iterable[Layer]) -> None:
    """Mount the folders in the mount namespace of a machine. The private ones are created in ``disk``."""
    opened = []
    for path, is_private in layers:  # opened before a mount hides one
        source = f"{disk}{path}" if is_private else path
        if is_private:
            os.makedirs(source, exist_ok=True)
            os.chmod(source, os.stat(path).st_mode & 0o7777)
        opened.append((path, is_private, os.open(source, os.O_PATH)))
    for path, is_private, source in opened:
        os.makedirs(path, exist_ok=True)
        ns.mount(f"/proc/self/fd/{source}", path, "", ns.MS_BIND | ns.MS_REC)
        os.close(source)
        if not is_private:  # a user namespace may not drop the other flags of a mount
            flags = os.statvfs(path).f_flag & (ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
            ns.mount("", path, "", flags | ns.MS_REMOUNT | ns.MS_BIND | ns.MS_RDONLY)
