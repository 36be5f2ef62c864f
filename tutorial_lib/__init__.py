"""The runtime under the course: distributed GNN training with DGL on emulated or real machines."""

import os

from tutorial_lib.compat import stack

__version__ = "0.1.0"

# Without it, the first `import dgl` of a user prints which backend it chose, and writes a file into the home folder.
os.environ.setdefault("DGLBACKEND", "pytorch")
# `import dgl`: on a torch that DGL has no GraphBolt library for, too, and without threads that ask the web. See
# docs/patches.md.
stack.install()
