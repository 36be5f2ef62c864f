"""Time and memory of partitioning, stage by stage, and the edge cut.

    python benchmarks/partition_full.py                                  # the whole graph in 2 parts, as for train
    python benchmarks/partition_full.py --parts 2,4,8 --methods kaminpar,random

A new process computes each partition. It loads the data set, or generates and caches it, computes the fingerprint and
the partition, and writes the parts. The memory is the peak of the resident memory (VmHWM), including mapped files. The
script resets this peak before each stage. It stops a process that uses more memory than ``--stop-at``, before the
computer has none left. On a shared computer, compare the processor seconds and not the seconds.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tutorial_lib.files import parse_memory
from tutorial_lib.job.source import DataSource
from tutorial_lib.partition import partition_dataset


def read_memory(field: str) -> float:
    """Return a field of /proc/self/status in GB, the resident memory (VmRSS) or its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e9
    return float("nan")


class Stages:
    """Ends a stage when the next one begins, and prints its time and memory."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.name = ""

    def begin(self, name: str) -> None:
        """End the previous stage, if there is one, and begin the stage ``name``."""
        if self.name:
            self.rows.append(
                {
                    "stage": self.name,
                    "seconds": round(time.time() - self.start, 1),
                    "cpu_seconds": round(time.process_time() - self.cpu, 1),
                    "peak_gb": round(read_memory("VmHWM"), 2),
                }
            )
            print("  {seconds:8.1f} s {cpu_seconds:8.1f} s cpu {peak_gb:6.2f} GB  {stage}".format(**self.rows[-1]))
            sys.stdout.flush()
        self.name, self.start, self.cpu = name, time.time(), time.process_time()
        with contextlib.suppress(OSError):  # without the permission, the peak is that of all stages so far
            Path("/proc/self/clear_refs").write_text("5")


def limit_memory(limit: int) -> None:
    """End this process when it uses more than ``limit`` bytes."""

    def watch() -> None:
        while read_memory("VmRSS") * 1e9 < limit:
            time.sleep(0.1)
        print(f"stopped: more than {limit / 1e9:.1f} GB", flush=True)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def partition_once(options: argparse.Namespace, method: str, parts: int) -> dict:
    """Run all stages once in this process, and return the measurements."""
    limit_memory(parse_memory(options.stop_at))
    stages, start, cpu = Stages(), time.time(), time.process_time()
    stages.begin("load or generate the data set")
    dataset = DataSource("synthetic-products", scale=options.scale, root=options.root).load()
    stages.begin("fingerprint (twice in a training run)")
    dataset.fingerprint()
    done = partition_dataset(dataset, parts, options.child_folder / "parts", method=method, log=stages.begin)
    stages.begin("")
    written = sum(file["bytes"] for file in done.manifest["files"].values())
    report = done.report
    return {
        "scale": options.scale,
        "parts": parts,
        "method": report.method,
        "edge_cut_share": report.edge_cut_share,
        "fullest_part": max(report.nodes) * parts / sum(report.nodes),
        "fullest_train": max(report.train_nodes) * parts / sum(report.train_nodes),
        "seconds": round(time.time() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_gb": max(row["peak_gb"] for row in stages.rows),
        "written_gb": round(written / 1e9, 2),
        "stages": stages.rows,
    }


def main() -> int:
    """Partition with each method into each number of parts, and print a table. Return 1 if a partition failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the graph, 1 for that of ogbn-products")
    parser.add_argument("--parts", default="2", help="numbers of parts, such as 2,4,8")
    parser.add_argument("--methods", default="kaminpar", help="methods, such as kaminpar,random")
    parser.add_argument("--stop-at", default="14GB", help="memory at which a process is stopped")
    parser.add_argument(
        "--root", type=Path, default=Path("data"), help="folder of the cached data set and of the temporary parts"
    )
    parser.add_argument("--json", type=Path, help="file for all measurements")
    parser.add_argument("--child-folder", type=Path, help=argparse.SUPPRESS)  # the parent process removes it
    options = parser.parse_args()
    methods, parts = options.methods.split(","), [int(count) for count in options.parts.split(",")]
    if options.child_folder:
        print(json.dumps(partition_once(options, methods[0], parts[0])))
        return 0
    options.root.mkdir(parents=True, exist_ok=True)
    results = []
    for count in parts:
        for method in methods:
            print(f"scale {options.scale}, {count} parts, {method}", flush=True)
            results += run_in_child(options.root, method, count)
    print("\nmethod      parts    cut   nodes  train      time       cpu    peak")
    for result in results:
        print(
            "{method:11} {parts:5} {edge_cut_share:6.2%} {fullest_part:7.3f} {fullest_train:6.3f} {seconds:7.1f} s "
            "{cpu_seconds:7.1f} s {peak_gb:5.2f} GB".format(**result)
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(len(results) < len(parts) * len(methods))


def run_in_child(root: Path, method: str, parts: int) -> list[dict]:
    """Partition in a child process, show its output, and return its measurements, or an empty list if it failed."""
    command = [sys.executable, __file__, *sys.argv[1:], "--methods", method, "--parts", str(parts)]
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        subprocess.Popen([*command, "--child-folder", folder], stdout=subprocess.PIPE, text=True) as child,
    ):
        last = ""
        for line in child.stdout:
            if line.startswith("{"):
                last = line
            else:
                print(line, end="", flush=True)
    return [json.loads(last)] if last and child.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
