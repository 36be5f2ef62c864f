"""Count the copies of graph and features that two ranks hold. Usage: python scripts/bolt_copies.py FOLDER"""

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import dgl.graphbolt as gb
import torch.multiprocessing as mp


def memory_of(tensor):
    """Return the location of a tensor, either a file that other processes can map or the memory of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, device, inode, *_ = line.split()
        first, last = (int(end, 16) for end in addresses.split("-"))
        if first <= tensor.data_ptr() < last and rights.endswith("s"):  # mapped with MAP_SHARED
            return f"file {device} {inode}"
    return f"process {os.getpid()}"


def open_dataset(folder, in_memory):
    with redirect_stdout(None):
        dataset = gb.OnDiskDataset(folder, force_preprocess=False)
    dataset.yaml_data["feature_data"][0]["in_memory"] = in_memory  # overrides metadata.yaml
    return dataset.load()


def report_locations(rank, queue, sent, folder):
    """Report the locations of graph and features for the received data set and for two that this rank opens."""
    for title, dataset in (
        ("each rank opens the path, in_memory: true", open_dataset(folder, True)),
        ("each rank opens the path, in_memory: false", open_dataset(folder, False)),
        ("the parent sends its data set", sent),
    ):
        queue.put((title, memory_of(dataset.graph.indices), memory_of(dataset.feature.read("node", None, "feat"))))


if __name__ == "__main__":
    dataset = open_dataset(sys.argv[1], True)
    for strategy in ("file_descriptor", "file_system"):
        mp.set_sharing_strategy(strategy)
        queue = mp.get_context("spawn").SimpleQueue()
        try:
            mp.spawn(report_locations, (queue, dataset, sys.argv[1]), nprocs=2)
        except mp.ProcessExitedException as error:
            print(f"{strategy}: {error}", flush=True)
    locations = [queue.get() for _ in range(6)]
    for title in dict.fromkeys(location[0] for location in locations):
        graphs, features = zip(*(where for name, *where in locations if name == title))
        print(f"{title:42} {len(set(graphs))} of the graph, {len(set(features))} of the features")
