"""How time, wire, memory and start-up grow with machines and with the graph: `make growth`.

    python benchmarks/growth.py                      # scales 0.01 to 0.16 and 1 to 8 machines, about 10 minutes
    python benchmarks/growth.py --scales 1.0 --machines ""       # the size of ogbn-products, about 15 minutes

Each row is a job of its own on emulated machines with a wire of 1 Gbit/s: the guide's loop and ours take turns, epoch
by epoch. More emulated machines than cores share the cores: seconds then say how much work there is, not how fast a
cluster would be; bytes, memory and processor seconds are what they would be.

Rows are added to benchmarks/out/growth.json, one for each pair of scale and machines; the table and growth.png are made
of all that are there.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from bench import CONFIG, OUT, show, table
from jobs import computer, median, partition_of, run_job
from matplotlib.figure import Figure

from tutorial_lib.launcher.coordinator import MachineUse

WIRE = "1gbit"
HEAD = ["scale", "machines", "edges cut", "guide, s per epoch", "ours, s per epoch", "ours / guide"]
HEAD += ["guide, MB sent per epoch", "ours, MB sent per epoch", "start, s", "largest server, GB", "largest trainer, GB"]


def measure(scale: float, machines: int, rounds: int, root: Path | None) -> dict[str, Any]:
    """One job; bytes are the sum over the machines."""
    partition = partition_of(scale, machines, root)
    settings = {
        "config": CONFIG.to_dict(),
        "speeds": [WIRE],
        "warm": 0 if scale > 0.5 else 3,  # a large graph's first epoch is measured, caches empty
        "rounds": rounds,
        "loops": ["guide", "ours"],
    }
    use: dict[str, MachineUse] = {}
    events = run_job(partition, settings, on_event=show, use=use)
    begin = min(event["time"] for event in events)
    joined = [event["time"] for event in events if event["kind"] == "joined"]
    last = [e["pipeline"] for e in events if e["kind"] == "timed" and e["loop"] == "ours" and e["rank"] == 0][-1]
    row: dict[str, Any] = {"scale": scale, "machines": machines, "cut": partition.report.edge_cut_share}
    for name in ("guide", "ours"):
        row[f"{name} seconds"] = median(events, "seconds", loop=name)
        row[f"{name} cpu"] = median(events, "cpu_seconds", loop=name)
        row[f"{name} MB"] = median(events, "sent", loop=name) * machines / 1e6
    row |= {"start": max(joined) - begin, "kept": last}
    for role in ("server", "trainer"):
        row[role] = max(found.peak_rss.get(role, 0) for found in use.values()) / 1e9
    return row


def rows_of(found: list[dict[str, Any]]) -> str:
    """The table."""
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
        for row in found
    ]
    return table(HEAD, cells)


def figure(found: list[dict[str, Any]]) -> Figure:
    """Bytes and seconds against machines, at scale 0.04; and against scale, on two machines."""
    picture = Figure(figsize=(10, 6.5), layout="constrained")
    axes = picture.subplots(2, 2, squeeze=False)
    sides = (
        ("machines", [row for row in found if row["scale"] == 0.04], "machines (scale 0.04)"),
        ("scale", [row for row in found if row["machines"] == 2], "scale (two machines; 1.0 has 124M edges)"),
    )
    for column, (key, rows, label) in enumerate(sides):
        rows = sorted(rows, key=lambda row: row[key])
        at = [row[key] for row in rows]
        for line, (unit, title) in enumerate((("MB", "MB on the wire per epoch"), ("seconds", "seconds per epoch"))):
            axis = axes[line][column]
            for name, color, mark in (("guide", "#D55E00", "o"), ("ours", "#0072B2", "s")):
                axis.plot(at, [row[f"{name} {unit}"] for row in rows], color=color, marker=mark, label=name)
            scale = "linear" if key == "machines" else "log"  # one machine sends nothing
            axis.set(xscale="log", yscale=scale, xlabel=label, ylabel=title, xticks=at)
            if scale == "linear":
                axis.set_ylim(bottom=0)
            axis.set_xticks(at, [str(value) for value in at])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.legend(frameon=False)
    return picture


def main() -> None:
    """Measure what is asked for, then make table and picture of everything that has been measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", default="0.01,0.04,0.16", help="on two machines")
    parser.add_argument("--machines", default="1,2,4,8", help="at scale 0.04")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    wanted = [(float(text), 2) for text in options.scales.split(",") if text]
    wanted += [(0.04, int(text)) for text in options.machines.split(",") if text and int(text) != 2]
    OUT.mkdir(exist_ok=True)
    path = OUT / "growth.json"
    found = json.loads(path.read_text()) if path.exists() else []
    for scale, machines in wanted:
        print(f"scale {scale}, {machines} machine(s):", flush=True)
        row = measure(scale, machines, options.rounds, options.root)
        found = [old for old in found if (old["scale"], old["machines"]) != (scale, machines)] + [row]
        found.sort(key=lambda row: (row["machines"], row["scale"]))
        path.write_text(json.dumps(found, indent=1))
        print(rows_of([row]), flush=True)
    print(f"\n{computer()}\n\n{rows_of(found)}")
    (OUT / "growth.md").write_text(f"{computer()}\n\n{rows_of(found)}\n")
    figure(found).savefig(OUT.with_name("growth.png"), dpi=110)
    print(f"median start: {statistics.median(row['start'] for row in found):.1f} s")


if __name__ == "__main__":
    main()
