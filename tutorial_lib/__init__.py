"""The runtime under the course: distributed GNN training with DGL on emulated or real machines."""

import os
import sys

from tutorial_lib.compat import graphbolt_stub

__version__ = "0.1.0"

# `import dgl` imports ogb, which uses the package `outdated` to ask the web for newer versions of itself, in
# threads that hold up the end of every process by seconds. Without `outdated`, ogb skips that.
sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
# Without it, the first `import dgl` of a user prints which backend it chose, and writes a file into the home folder.
os.environ.setdefault("DGLBACKEND", "pytorch")
# On a torch that DGL has no GraphBolt library for, `import dgl` would fail; with this it loads without GraphBolt.
graphbolt_stub.install()
