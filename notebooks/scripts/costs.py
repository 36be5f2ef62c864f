"""Model the bytes of a job. Lesson 00 starts this module, and later lessons add seconds and memory."""

ID = 8  # bytes of an int64
FLOAT = 4  # bytes of a float32


def feature_bytes(rows, width):
    """Return the bytes of a table of float32 with this number of rows and columns."""
    return FLOAT * rows * width


def structure_bytes(nodes, edges):
    """Return the bytes of a graph for sampling: where the list of each node starts, and two numbers per edge."""
    return ID * (nodes + 1) + 2 * ID * edges


def all_reduce_bytes(values, ranks):
    """Return the bytes that each rank sends to add float32 values over a ring (lesson 05)."""
    return 2 * (ranks - 1) * FLOAT * values / ranks
