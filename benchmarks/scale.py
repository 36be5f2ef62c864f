"""A cache that does not hold the graph: what the rows that it keeps are worth, `make bench-scale`.

    python benchmarks/scale.py                   # scale 0.16, some minutes
    python benchmarks/scale.py --scale 1.0       # the size of ogbn-products, about an hour

Two emulated machines with one core, one server and one trainer each; model, fan-out and batch are those of bench.py.
First the rows: batches that nobody learns from, the same for every way to choose what is kept, and the fewest rows
that any cache of that size could have pulled for them (Belady). Then the time: the guide's loop and ours take turns,
epoch by epoch, in the same processes, after one epoch that is not measured. Compare the ratios, not the seconds. At
last the accuracy over all test nodes after ten epochs, for five seeds.

The tables are printed and written to benchmarks/out/scale.md, every single measurement to benchmarks/out/scale.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench import CONFIG, OUT, SPEEDS, accuracies, show, table
from jobs import computer, median, partition_of, run_job

SHARES = (2, 10, 25)  # percent of the remote rows
TIMED = 10
SEEDS = 5


WAYS = ("first come", "needed soonest")


def name_of(share: int, way: str) -> str:
    """The loop with so many of the remote rows kept."""
    return f"ours, {share}% of the remote rows kept, {way}"


def rows(partition: Any, epochs: int, ways: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Pulled in an epoch, sum over the machines; the first epoch, in which the cache is filled, is not counted."""
    loops = [name_of(share, way) for share in SHARES for way in ways]
    settings = {"what": "rows", "config": CONFIG.to_dict(), "rounds": epochs, "loops": loops}
    events = [event for event in run_job(partition, settings) if event["kind"] == "rows"]
    found = []
    for share in SHARES:
        for way in ways:
            own = [event for event in events if event["loop"] == name_of(share, way)]
            asked, pulled, fewest = (
                sum(e.get(field, 0) for e in own) / epochs for field in ("asked", "pulled", "fewest")
            )
            bound = [f"{fewest:,.0f}", f"{pulled / fewest:.2f}"] if fewest else ["", ""]
            window = max(event.get("window", 0) for event in own)
            found.append([f"{share} %", way, f"{asked:,.0f}", f"{pulled:,.0f}", *bound, window])
    head = ["cache, of the remote rows", "way", "remote rows needed in an epoch", "pulled"]
    return table([*head, "fewest possible", "pulled / fewest", "batches drawn ahead"], found), events


def times(partition: Any, rounds: int, speeds: tuple[str, ...], ways: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Epochs from the second on, each way with a cache of 10 % beside the guide's loop."""
    loops = ["guide", "alone", "ours alone", *(name_of(TIMED, way) for way in ways)]
    settings = {"config": CONFIG.to_dict(), "speeds": speeds, "warm": 1, "rounds": rounds, "loops": loops}
    events = run_job(partition, settings, on_event=show)
    found = []
    for name in loops[1:]:
        row = [name]
        for wire in speeds:
            own, guide = (median(events, "seconds", wire=wire, loop=loop) for loop in (name, "guide"))
            row += [f"{own:.1f}", f"{own / guide:.2f}"]
        found.append([*row, f"{median(events, 'sent', loop=name) / 1e6:.1f}"])
    guide = [
        "guide",
        *(text for w in speeds for text in (f"{median(events, 'seconds', wire=w, loop='guide'):.1f}", "1")),
    ]
    found.insert(0, [*guide, f"{median(events, 'sent', loop='guide') / 1e6:.1f}"])
    head = ["loop", *(text for wire in speeds for text in (f"{wire}, s", "/ guide")), "MB sent by a machine"]
    return table(head, found), events


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speeds", nargs="+", default=SPEEDS, choices=SPEEDS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--only", choices=["rows", "times", "accuracy"])
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    loops = [name_of(TIMED, way) for way in options.ways if way != WAYS[0]]
    partition = partition_of(options.scale, 2, options.root)
    OUT.mkdir(exist_ok=True)
    parts, measured = [f"{computer()}; scale {options.scale}\n"], {}
    for name, measure in (
        ("rows", lambda: rows(partition, options.rounds, options.ways)),
        ("times", lambda: times(partition, options.rounds, tuple(options.speeds), options.ways)),
        ("accuracy", lambda: accuracies(partition, 10, loops, list(range(SEEDS)))),
    ):
        if options.only in (None, name):
            text, measured[name] = measure()
            parts.append(text + "\n")
            print(f"\n{text}\n", flush=True)
    (OUT / "scale.md").write_text("\n".join(parts))
    (OUT / "scale.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
