"""The runtime under the course: distributed GNN training with DGL on emulated or real machines."""

import sys

__version__ = "0.1.0"

# `import dgl` imports ogb, which uses the package `outdated` to ask the web for newer versions of itself, in
# threads that hold up the end of every process by seconds. Without `outdated`, ogb skips that.
sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
