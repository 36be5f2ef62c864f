"""The runtime under the course: distributed GNN training with DGL on emulated or real machines."""

import os

from tutorial_lib.compat import stack

__version__ = "0.1.0"

# Without it, the first `import dgl` of a user prints which backend it chose, and writes a file into the home folder.
os.environ.setdefault("DGLBACKEND", "pytorch")
stack.install()  # `import dgl` works with any torch, see docs/patches.md
