"""Measure time, traffic, memory and start-up for more machines and larger graphs: `make bench-growth`.

    python benchmarks/growth.py                      # scales 0.01 to 0.16 and 1 to 8 machines, about 10 minutes
    python benchmarks/growth.py --scales 1.0 --machines ""       # the size of ogbn-products, about 15 minutes

Each row is a separate job on emulated machines with a bandwidth of 1 Gbit/s, in which the guide's loop and ours
alternate after every epoch. More emulated machines than cores share the cores. The seconds then show the amount of work
and not the speed of a cluster. Bytes, memory and processor seconds are those of a cluster.

The script adds each row to benchmarks/out/growth.json, or replaces the row with the same scale and machines. The table
and growth.png show all rows of this file.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from bench import CONFIG, OUT, format_table, show_progress
from jobs import describe_computer, median, partition_of, run_job
from matplotlib.figure import Figure

from tutorial_lib.launcher.coordinator import MachineUse

BANDWIDTH = "1gbit"
HEAD = ["scale", "machines", "edges cut", "guide, s per epoch", "ours, s per epoch", "ours / guide"]
HEAD += ["guide, MB sent per epoch", "ours, MB sent per epoch", "start, s", "largest server, GB", "largest trainer, GB"]


def measure_row(scale: float, machines: int, rounds: int, root: Path | None) -> dict[str, Any]:
    """Run one job, and return its row. The bytes are the sum over the machines."""
    partition = partition_of(scale, machines, root)
    settings = {
        "config": CONFIG.to_dict(),
        "bandwidths": [BANDWIDTH],
        "warm": 0 if scale > 0.5 else 3,  # of a large graph, the first epoch with empty caches is measured
        "rounds": rounds,
        "loops": ["guide", "ours"],
    }
    usage: dict[str, MachineUse] = {}
    events = run_job(partition, settings, on_event=show_progress, usage=usage)
    begin = min(event["time"] for event in events)
    joined = [event["time"] for event in events if event["kind"] == "joined"]
    last_cache = [e["cache"] for e in events if e["kind"] == "timed" and e["loop"] == "ours" and e["rank"] == 0][-1]
    row: dict[str, Any] = {"scale": scale, "machines": machines, "cut": partition.report.edge_cut_share}
    for name in ("guide", "ours"):
        row[f"{name} seconds"] = median(events, "seconds", loop=name)
        row[f"{name} cpu"] = median(events, "cpu_seconds", loop=name)
        row[f"{name} MB"] = median(events, "sent", loop=name) * machines / 1e6
    row |= {"start": max(joined) - begin, "cache": last_cache}
    for role in ("server", "trainer"):
        row[role] = max(machine.peak_rss.get(role, 0) for machine in usage.values()) / 1e9
    return row


def format_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    cells = [
        [
            row["scale"],
            row["machines"],
            f"{row['cut']:.1%}",
            f"{row['guide seconds']:.2f}",
            f"{row['ours seconds']:.2f}",
            f"{row['ours seconds'] / row['guide seconds']:.2f}",
            f"{row['guide MB']:.0f}",
            f"{row['ours MB']:.1f}",
            f"{row['start']:.1f}",
            f"{row['server']:.2f}",
            f"{row['trainer']:.2f}",
        ]
        for row in rows
    ]
    return format_table(HEAD, cells)


def draw_rows(rows: list[dict[str, Any]]) -> Figure:
    """Draw bytes and seconds against machines at scale 0.04, and against scale on two machines."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2, squeeze=False)
    columns = (
        ("machines", [row for row in rows if row["scale"] == 0.04], "machines (scale 0.04)"),
        ("scale", [row for row in rows if row["machines"] == 2], "scale (two machines, 1.0 has 124M edges)"),
    )
    for column, (key, selected, label) in enumerate(columns):
        selected.sort(key=lambda row: row[key])
        values = [row[key] for row in selected]
        for line, (unit, title) in enumerate((("MB", "MB sent per epoch"), ("seconds", "seconds per epoch"))):
            axis = axes[line][column]
            for name, color, marker in (("guide", "#D55E00", "o"), ("ours", "#0072B2", "s")):
                ys = [row[f"{name} {unit}"] for row in selected]
                axis.plot(values, ys, color=color, marker=marker, label=name)
            scale = "linear" if key == "machines" else "log"  # one machine sends nothing
            axis.set(xscale="log", yscale=scale, xlabel=label, ylabel=title, xticks=values)
            if scale == "linear":
                axis.set_ylim(bottom=0)
            axis.set_xticks(values, [str(value) for value in values])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.legend(frameon=False)
    return figure


def main() -> None:
    """Measure the requested rows, and write the table and the picture of all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", default="0.01,0.04,0.16", help="scales of the jobs on two machines")
    parser.add_argument("--machines", default="1,2,4,8", help="numbers of machines of the jobs at scale 0.04")
    parser.add_argument("--rounds", type=int, default=3, help="number of measured epochs of each loop")
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    jobs = [(float(text), 2) for text in options.scales.split(",") if text]
    jobs += [(0.04, int(text)) for text in options.machines.split(",") if text and int(text) != 2]
    OUT.mkdir(exist_ok=True)
    path = OUT / "growth.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for scale, machines in jobs:
        print(f"scale {scale}, {machines} machine(s):", flush=True)
        row = measure_row(scale, machines, options.rounds, options.root)
        rows = [old for old in rows if (old["scale"], old["machines"]) != (scale, machines)] + [row]
        rows.sort(key=lambda row: (row["machines"], row["scale"]))
        path.write_text(json.dumps(rows, indent=1))
        print(format_rows([row]), flush=True)
    text = f"{describe_computer()}\n\n{format_rows(rows)}\n"
    print(f"\n{text}")
    (OUT / "growth.md").write_text(text)
    draw_rows(rows).savefig(OUT.with_name("growth.png"), dpi=110)
    print(f"median start: {statistics.median(row['start'] for row in rows):.1f} s")


if __name__ == "__main__":
    main()
