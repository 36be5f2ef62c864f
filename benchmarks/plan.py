"""Compare estimates of `plan` with measured jobs: `make bench-plan`.

    python benchmarks/plan.py                 # all cases, about 6 minutes
    python benchmarks/plan.py --cases 3

A case is a job of three epochs on emulated machines. Cases differ in scale, machines, fan-outs, wire and cache. The
constants were chosen with measurements of these cases at hand, so that the table is no independent test of them.
Memory is that of the largest server and the largest trainer, bytes are those of the whole job, and seconds are the
mean of the second and third epoch. More emulated machines than cores share the cores.

The table is printed and written to benchmarks/out/plan.md, every figure to benchmarks/out/plan.json.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench import OUT, table
from jobs import computer, partition_of

from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_distributed
from tutorial_lib.launcher.backends.emulated import parse_wire
from tutorial_lib.tools.plan import Estimate, Job, estimate, job_sizes
from tutorial_lib.trainer.config import TrainConfig

EPOCHS = 3
CASES = (  # scale, machines, fan-outs, wire, MB of cache, batch
    (0.01, 2, (15, 10, 5), None, 256, 1000),
    (0.02, 2, (10, 10, 10), "1gbit", 256, 1000),
    (0.02, 4, (15, 10, 5), "200mbit", 4, 500),
    (0.04, 2, (15, 10, 5), None, 256, 1000),
    (0.04, 2, (15, 10, 5), "200mbit", 0, 1000),
    (0.04, 4, (15, 10), "1gbit", 256, 1000),
    (0.06, 2, (10, 5), "1gbit", 8, 1000),
    (0.06, 4, (15, 10, 5), None, 32, 1000),
    (0.08, 2, (15, 10, 5), "1gbit", 256, 1000),
    (0.08, 4, (10, 5, 5), "200mbit", 256, 1000),
)
LIMITS = {"server": 0.25, "trainer": 0.25, "bytes": 0.3, "seconds": 0.3}


def told(found: Estimate) -> dict[str, float]:
    """Return the four compared numbers of an estimate."""
    memory = {role: found.memory[role] for role in ("server", "trainer")}
    return {**memory, "bytes": found.job_bytes, "seconds": found.epoch}


def run(case: tuple[Any, ...], root: Path | None) -> dict[str, Any]:
    """Estimate a case, then run its job."""
    scale, machines, fanouts, wire, cache, batch = case
    config = TrainConfig(epochs=EPOCHS, fanouts=fanouts, cache=cache * 10**6, batch_size=batch)
    source, rate = DataSource("synthetic-products", scale=scale, root=root), parse_wire(wire)
    sizes = {"machines": machines, "config": config, "wire": rate and 8.0 * rate, **job_sizes(source)}
    found = estimate(Job(**sizes, cores=len(os.sched_getaffinity(0))))
    partition = partition_of(scale, machines, root)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        result = run_distributed(partition, Layout(machines, wire), config, Path(name) / "run")
    later = [epoch["seconds"] for epoch in result["epochs"][1:]]
    peaks = result["peak_rss"].values()
    was = {role: max(peak[role] for peak in peaks) for role in ("server", "trainer")}
    was |= {"bytes": sum(result["bytes_sent"].values()), "seconds": sum(later) / len(later)}
    return {"case": case, "told": told(found), "was": was, "load": os.getloadavg()[0]}


def off(row: dict[str, Any], what: str) -> float:
    """How far off, as a share of what it was."""
    return row["told"][what] / row["was"][what] - 1


def rows_of(found: list[dict[str, Any]]) -> str:
    """The table, and how many cases are within the limits."""
    lines = []
    for row in found:
        scale, machines, fanouts, wire, cache, batch = row["case"]
        line = [scale, machines, ",".join(map(str, fanouts)), wire or "unshaped", f"{cache} MB", batch]
        for what in LIMITS:
            unit, digits = (1.0, 2) if what == "seconds" else (1e6, 0)
            both = f"{row['told'][what] / unit:.{digits}f} / {row['was'][what] / unit:.{digits}f}"
            line.append(f"{both}: {off(row, what):+.0%}")
        lines.append([*line, f"{row['load']:.0f}"])
    head = ["scale", "machines", "fan-outs", "wire", "cache", "batch", "largest server, MB", "largest trainer, MB"]
    head += ["bytes of the job, MB", "later epoch, s"]
    words = []
    for what, limit in LIMITS.items():
        within = sum(abs(off(row, what)) <= limit for row in found)
        words.append(f"{what} within {limit:.0%}: {within} of {len(found)}")
    return f"{table([*head, 'load'], lines)}\n\n{'; '.join(words)}."


def main() -> None:
    """Predict, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(CASES), help="the first so many")
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    found = []
    for case in CASES[: options.cases]:
        found.append(run(case, options.root))
        print(case, {what: f"{off(found[-1], what):+.1%}" for what in LIMITS}, flush=True)
        (OUT / "plan.json").write_text(json.dumps(found))
    text = f"{computer()}\n\n{rows_of(found)}\n"
    (OUT / "plan.md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
