"""A second checkpoint cannot be written: FOLDER and ``disk`` (it is full) or the bytes that a file may have."""

import resource
import sys
from pathlib import Path

from tutorial_lib.launcher.backends.namespaces import mount, new_user_namespace, unshare

folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "disk":  # before torch starts its threads: a user namespace is for a process with one
    new_user_namespace()
    unshare("mnt")
    mount("tmpfs", str(folder), "tmpfs", 0, "size=32k")
sys.path.insert(0, str(Path(__file__).parents[1]))
from checkpoint_support import save, trained  # noqa: E402

save(folder, *trained(), 1)
before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
if how == "disk":
    (folder / "other").write_bytes(bytes(16000))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(how), int(how)))
try:
    save(folder, *trained(), 2)
except OSError as error:
    print(f"{error.errno} {error}")
else:
    sys.exit("nothing failed")
(folder / "other").unlink(missing_ok=True)
assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before, list(folder.rglob("*"))
