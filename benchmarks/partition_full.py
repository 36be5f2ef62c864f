"""Time and memory of partitioning, stage by stage, and the cut that comes out.

    python benchmarks/partition_full.py                                  # the whole graph, 2 parts, as `train` does it
    python benchmarks/partition_full.py --parts 2,4,8 --methods kaminpar,random

Each cut is made by a fresh process: load (or generate and cache) the data set, take its fingerprint, cut, write the
parts. Memory is what the kernel counts as resident (VmHWM), mapped files included, with its high-water mark set
back before each stage. A process that passes ``--stop-at`` is stopped, so that the computer it runs on is not
exhausted. Processor seconds are given beside seconds: on a computer that is shared, only they can be compared.
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

from tutorial_lib.job.source import DataSource
from tutorial_lib.partition import partition_dataset
from tutorial_lib.trainer.config import parse_memory


def memory(field: str) -> float:
    """GB of a field of /proc/self/status: VmRSS (now), VmHWM (the most so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e9
    return float("nan")


class Stages:
    """Closes a stage when the next one begins, and prints what it took."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.name = ""

    def begin(self, name: str) -> None:
        """End the stage before, if there is one; the first words of ``name`` become the name of the new one."""
        if self.name:
            self.rows.append(
                {
                    "stage": self.name,
                    "seconds": round(time.time() - self.start, 1),
                    "cpu_seconds": round(time.process_time() - self.cpu, 1),
                    "peak_gb": round(memory("VmHWM"), 2),
                }
            )
            print("  {seconds:8.1f} s {cpu_seconds:8.1f} s cpu {peak_gb:6.2f} GB  {stage}".format(**self.rows[-1]))
            sys.stdout.flush()
        self.name, self.start, self.cpu = name, time.time(), time.process_time()
        with contextlib.suppress(OSError):  # where this is not allowed, the peak is that of all stages so far
            Path("/proc/self/clear_refs").write_text("5")


def stop_at(limit: int) -> None:
    """End this process when it holds more than ``limit`` bytes."""

    def watch() -> None:
        while memory("VmRSS") * 1e9 < limit:
            time.sleep(0.1)
        print(f"stopped: more than {limit / 1e9:.1f} GB", flush=True)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def cut_once(options: argparse.Namespace, method: str, parts: int) -> dict:
    """Do it all once in this process; the figures."""
    stop_at(parse_memory(options.stop_at))
    stages, start, cpu = Stages(), time.time(), time.process_time()
    stages.begin("load or generate the data set")
    dataset = DataSource("synthetic-products", scale=options.scale, root=options.root).load()
    stages.begin("fingerprint (twice in a training run)")
    dataset.fingerprint()
    done = partition_dataset(dataset, parts, options.one / "parts", method=method, log=stages.begin)
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
    """Cut with every method into every number of parts; one line each at the end. The exit code: 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", default="2")
    parser.add_argument("--methods", default="kaminpar")
    parser.add_argument("--stop-at", default="14GB", help="where the process is stopped")
    parser.add_argument(
        "--root", type=Path, default=Path("data"), help="cache of the data set, and the parts meanwhile"
    )
    parser.add_argument("--json", type=Path, help="also write all figures here")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a child's folder, which its parent removes
    options = parser.parse_args()
    methods, parts = options.methods.split(","), [int(count) for count in options.parts.split(",")]
    if options.one:
        print(json.dumps(cut_once(options, methods[0], parts[0])))
        return 0
    options.root.mkdir(parents=True, exist_ok=True)
    results = []
    for count in parts:
        for method in methods:
            print(f"scale {options.scale}, {count} parts, {method}", flush=True)
            results += in_a_child(options.root, method, count)
    print("\nmethod      parts    cut   nodes  train      time       cpu    peak")
    for one in results:
        print(
            "{method:11} {parts:5} {edge_cut_share:6.2%} {fullest_part:7.3f} {fullest_train:6.3f} {seconds:7.1f} s "
            "{cpu_seconds:7.1f} s {peak_gb:5.2f} GB".format(**one)
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(len(results) < len(parts) * len(methods))


def in_a_child(root: Path, method: str, parts: int) -> list[dict]:
    """The figures of one cut, or none if it was stopped or failed; what the child says is shown as it comes."""
    command = [sys.executable, __file__, *sys.argv[1:], "--methods", method, "--parts", str(parts)]
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        subprocess.Popen([*command, "--one", folder], stdout=subprocess.PIPE, text=True) as child,
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
