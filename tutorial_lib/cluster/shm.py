"""The files that DGL's servers keep in /dev/shm: finding them, and removing those of a job that has ended.

Seen with DGL 2.1.0 for a graph named G: ``G``, ``G_node_*``, ``G_edge_*``, ``GG_0_csc_*`` and, for each feature F,
``node~_N~F-kvdata-``. The last carry no name of graph or job: two jobs on one /dev/shm overwrite each other's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

SHM = Path("/dev/shm")
_SEGMENT = re.compile(r"kvdata|_(node|edge)_|_(csc|csr|coo)_")


def dgl_segments() -> list[str]:
    """Names of the files in /dev/shm that look like a DGL server's."""
    return sorted(name for name in os.listdir(SHM) if _SEGMENT.search(name))


def remove_segments(before: set[str], part_config: str) -> None:
    """Remove what the servers of a job left: files that were not there before it and belong to this user.

    Servers unlink their files when they end well; killed ones do not.
    """
    try:
        graph_name = json.loads(Path(part_config).read_text())["graph_name"]
    except (OSError, ValueError, KeyError):
        graph_name = None
    for name in set(os.listdir(SHM)) - before:
        structure = graph_name and (name == graph_name or name.startswith((f"{graph_name}_", graph_name * 2)))
        if not structure and not name.endswith("-kvdata-"):
            continue
        with contextlib.suppress(OSError):
            if (SHM / name).stat().st_uid == os.geteuid():
                (SHM / name).unlink()
