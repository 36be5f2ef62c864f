"""Private disks of emulated machines: folders of this computer's disk, mounted over what machines would share.

Which folders are private and which stay visible is decided on this computer (``layers``). Pid 1 of a machine mounts
them (``mount_disk``), in an order in which an inner folder comes after the outer one:

    /home/me            private, empty: DISK/machine-0/home/me
    /home/me/course     the checkout with its .venv, read-only
    /home/me/course/runs, /home/me/course/data    private, empty

A private folder is found on this computer at the folder of the machine's disk, followed by its path.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tutorial_lib.cluster import namespaces as ns

COPY_TO = "/tmp/tutorial"  # on the machines: /tmp is always one of the private folders
CHECKOUT = Path(__file__).resolve().parents[2]
LARGE_FILES = "/var/tmp"  # unlike /tmp, it is hardly ever in memory
_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}

# Of these, only folders below can be private: without them, no machine would work.
_SYSTEM = {
    "/",
    *(f"/{name}" for name in ("bin", "dev", "etc", "lib", "lib64", "nix", "opt", "proc", "run", "sys", "usr", "var")),
}

Layer = tuple[str, bool]  # path of a folder, and whether it is private


def new_disks() -> Path:
    """Make a folder for the disks of a cluster, on the disk of this computer (``TMPDIR`` names another one)."""
    parent = os.environ.get("TMPDIR", LARGE_FILES)
    usable = os.access(parent, os.W_OK | os.X_OK)
    return Path(tempfile.mkdtemp(prefix=f"tutorial_lib-{os.getuid()}-disks-", dir=parent if usable else None))


def layers(more: Iterable[Path] = ()) -> list[Layer]:
    """Return the folders to mount, outer ones first.

    Private are the home, the folders for temporary files, the working directory, and the folders ``data`` and ``runs``
    of the checkout and of the working directory. The checkout and what Python imports from stay visible.

    Args:
        more: other private folders, such as the run folder. They are created if they do not exist.
    """
    here, temporary = Path.cwd(), Path(tempfile.gettempdir()).resolve()
    private = {Path("/tmp"), Path(LARGE_FILES), temporary, Path.home()}
    with contextlib.suppress(KeyError):  # a container's user may have no entry
        private.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    private = {path.resolve() for path in private if path.is_dir()}
    visible = {path for start in _python_folders() if start.is_dir() for path in (start, start.resolve())}
    if CHECKOUT.name.endswith("-packages"):
        private.add(here)
    else:
        visible.add(CHECKOUT)
        private |= {CHECKOUT / "data", CHECKOUT / "runs", *([] if here.is_relative_to(CHECKOUT) else [here])}
    private |= {here / "runs", *(path.resolve() for path in more)}
    kept: dict[Path, bool | None] = {Path("/"): None}
    for path in sorted(private | visible, key=lambda path: (len(path.parts), path)):
        is_private = path not in visible
        around = next(kept[parent] for parent in path.parents if parent in kept)
        if (is_private == around and path != temporary) or (is_private and str(path) in _SYSTEM):
            continue
        with contextlib.suppress(OSError):  # of somebody else's folder
            if is_private:
                path.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            kept[path] = is_private
    del kept[Path("/")]
    return [(str(path), bool(is_private)) for path, is_private in kept.items()]


def _python_folders() -> Iterator[Path]:
    """The interpreter behind all its symbolic links, the standard library, and the folders of installed packages."""
    program = Path(sys.executable)
    while program.is_symlink():
        yield program.parent
        program = program.parent / program.readlink()
    yield from (program.parent, Path(sys.prefix), Path(sys.base_prefix))
    yield from (Path(entry) for entry in sys.path if entry.endswith("-packages"))


def mount_disk(disk: str, wanted: Iterable[Layer]) -> None:
    """In the mount namespace of a machine: mount the folders; ``disk`` is created and gets the private ones."""
    sources: list[tuple[str, bool, int]] = []
    for path, is_private in wanted:  # opened before a mount hides one
        source = f"{disk}{path}" if is_private else path
        if is_private:
            os.makedirs(source)
            os.chmod(source, os.stat(path).st_mode & 0o7777)
        sources.append((path, is_private, os.open(source, os.O_PATH)))
    for path, is_private, source in sources:
        os.makedirs(path, exist_ok=True)
        ns.mount(f"/proc/self/fd/{source}", path, "", ns.MS_BIND | ns.MS_REC, "", f"mount the private disk at {path}")
        os.close(source)
        if not is_private:
            _make_read_only(path)


def _make_read_only(folder: str) -> None:
    """A mount and those below it. In a user namespace, the kernel refuses to drop the other flags of a mount."""
    with open("/proc/self/mountinfo") as mounts:  # of several at a point, the last one is on top
        found = dict(line.split()[4:6] for line in mounts)
    for point, options in found.items():
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), point)
        if point == folder or point.startswith(f"{folder}/"):
            flags = sum(_FLAGS.get(option, 0) for option in options.split(","))
            step = f"make {point} read-only"
            ns.mount("", point, "", ns.MS_REMOUNT | ns.MS_BIND | ns.MS_RDONLY | flags, "", step)
