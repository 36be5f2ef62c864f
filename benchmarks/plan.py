"""Compare estimates of `plan` with measured jobs: `make bench-plan`.

    python benchmarks/plan.py                 # all cases, about 6 minutes
    python benchmarks/plan.py --cases 3

A case is a job of three epochs on emulated machines. The cases differ in scale, machines, fan-outs, bandwidth, cache
and batch size. The constants of `plan` were adjusted with measurements of these cases at hand, so the table is no
independent test of them. The table compares the memory of the largest server and of the largest trainer, the bytes of
the whole job, and the mean seconds of the second and third epoch. More emulated machines than cores share the cores.

The table is printed and written to benchmarks/out/plan.md, all measurements to benchmarks/out/plan.json.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench import OUT, format_table
from jobs import describe_computer, partition_of

from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_distributed
from tutorial_lib.launcher.backends.emulated import parse_wire
from tutorial_lib.tools.plan import Estimate, Job, estimate, job_sizes
from tutorial_lib.trainer.config import TrainConfig

EPOCHS = 3
CASES = (  # scale, machines, fan-outs, bandwidth, MB of cache, batch size
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
# Of the relative errors
LIMITS = {"server": 0.25, "trainer": 0.25, "bytes": 0.3, "seconds": 0.3}


def compared_numbers(estimated: Estimate) -> dict[str, float]:
    """Return the four compared numbers of an estimate."""
    memory = {role: estimated.memory[role] for role in ("server", "trainer")}
    return {**memory, "bytes": estimated.job_bytes, "seconds": estimated.epoch}


def run_case(case: tuple[Any, ...], root: Path | None) -> dict[str, Any]:
    """Estimate a case, run its job, and return both results."""
    scale, machines, fanouts, bandwidth, cache, batch = case
    config = TrainConfig(epochs=EPOCHS, fanouts=fanouts, cache=cache * 10**6, batch_size=batch)
    source, rate = DataSource("synthetic-products", scale=scale, root=root), parse_wire(bandwidth)
    sizes = {"machines": machines, "config": config, "wire": rate and 8.0 * rate, **job_sizes(source)}
    estimated = estimate(Job(**sizes, cores=len(os.sched_getaffinity(0))))
    partition = partition_of(scale, machines, root)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        result = run_distributed(partition, Layout(machines, bandwidth), config, Path(name) / "run")
    later = [epoch["seconds"] for epoch in result["epochs"][1:]]
    peaks = result["peak_rss"].values()
    measured = {role: max(peak[role] for peak in peaks) for role in ("server", "trainer")}
    measured |= {"bytes": sum(result["bytes_sent"].values()), "seconds": sum(later) / len(later)}
    return {"case": case, "estimated": compared_numbers(estimated), "measured": measured, "load": os.getloadavg()[0]}


def relative_error(row: dict[str, Any], quantity: str) -> float:
    """Return the relative error of an estimate."""
    return row["estimated"][quantity] / row["measured"][quantity] - 1


def format_results(rows: list[dict[str, Any]]) -> str:
    """Return the table, and the number of cases within the limits."""
    lines = []
    for row in rows:
        scale, machines, fanouts, bandwidth, cache, batch = row["case"]
        line = [scale, machines, ",".join(map(str, fanouts)), bandwidth or "unshaped", f"{cache} MB", batch]
        for quantity in LIMITS:
            unit, digits = (1.0, 2) if quantity == "seconds" else (1e6, 0)
            both = " / ".join(f"{row[kind][quantity] / unit:.{digits}f}" for kind in ("estimated", "measured"))
            line.append(f"{both}: {relative_error(row, quantity):+.0%}")
        lines.append([*line, f"{row['load']:.0f}"])
    head = ["scale", "machines", "fan-outs", "bandwidth", "cache", "batch", "largest server, MB", "largest trainer, MB"]
    head += ["bytes of the job, MB", "later epoch, s"]
    summaries = []
    for quantity, limit in LIMITS.items():
        within = sum(abs(relative_error(row, quantity)) <= limit for row in rows)
        summaries.append(f"{quantity} within {limit:.0%}: {within} of {len(rows)}")
    return f"{format_table([*head, 'load'], lines)}\n\n{'; '.join(summaries)}."


def main() -> None:
    """Estimate and run each case, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(CASES), help="number of cases, from the first on")
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    rows = []
    for case in CASES[: options.cases]:
        rows.append(run_case(case, options.root))
        print(case, {quantity: f"{relative_error(rows[-1], quantity):+.1%}" for quantity in LIMITS}, flush=True)
        (OUT / "plan.json").write_text(json.dumps(rows))
    text = f"{describe_computer()}\n\n{format_results(rows)}\n"
    (OUT / "plan.md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
