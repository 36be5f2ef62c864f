"""Measure a cache that is smaller than the remote rows: `make bench-scale`.

    python benchmarks/scale.py                   # scale 0.16, a few minutes
    python benchmarks/scale.py --scale 1.0       # the size of ogbn-products, about an hour

The job has two emulated machines with one core, one server and one trainer each. Model, fan-out and batch size are
those of bench.py. The first table counts the pulled rows of batches without training, which are equal for each cache
rule, and the fewest rows that a cache of this size can pull for these batches (Belady). The second table shows the
time. The guide's loop and ours alternate after every epoch in the same processes, after one warm-up epoch. Compare the
ratios and not the seconds. Finally, the third table shows the accuracy over all test nodes after ten epochs, for five
seeds.

The tables are printed and written to benchmarks/out/scale.md, all measurements to benchmarks/out/scale.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench import BANDWIDTHS, CONFIG, OUT, Events, compare_accuracies, format_table, show_progress
from jobs import describe_computer, median, partition_of, run_job

SHARES = (2, 10, 25)  # percent of the remote rows
TIMED_SHARE = 10  # percent
SEEDS = 5
RULES = ("first come", "lookahead")


def loop_name(share: int, rule: str) -> str:
    """Return the name of our loop with a cache of this size and rule, see ``loops_job.py``."""
    return f"ours, {share}% of the remote rows cached, {rule}"


def count_rows(partition: Any, epochs: int, rules: list[str]) -> tuple[str, Events]:
    """Return the pulled rows of an epoch, summed over the machines, after the epoch that fills the cache."""
    loops = [loop_name(share, rule) for share in SHARES for rule in rules]
    settings = {"measurement": "rows", "config": CONFIG.to_dict(), "rounds": epochs, "loops": loops}
    events = [event for event in run_job(partition, settings) if event["kind"] == "rows"]
    rows = []
    for share in SHARES:
        for rule in rules:
            own = [event for event in events if event["loop"] == loop_name(share, rule)]
            needed, pulled, fewest = (
                sum(event.get(field, 0) for event in own) / epochs for field in ("needed", "pulled", "fewest")
            )
            bound = [f"{fewest:,.0f}", f"{pulled / fewest:.2f}"] if fewest else ["", ""]
            look_ahead = max(event.get("look_ahead", 0) for event in own)
            rows.append([f"{share} %", rule, f"{needed:,.0f}", f"{pulled:,.0f}", *bound, look_ahead])
    head = ["cache, share of the remote rows", "rule", "remote rows needed", "pulled"]
    return format_table([*head, "fewest possible", "pulled / fewest", "batches sampled ahead"], rows), events


def compare_times(partition: Any, rounds: int, bandwidths: list[str], rules: list[str]) -> tuple[str, Events]:
    """Measure epochs after the first of the guide's loop and of ours with a cache of 10 % and each rule."""
    loops = ["guide", "alone", "ours alone", *(loop_name(TIMED_SHARE, rule) for rule in rules)]
    settings = {"config": CONFIG.to_dict(), "bandwidths": bandwidths, "warm": 1, "rounds": rounds, "loops": loops}
    events = run_job(partition, settings, on_event=show_progress)
    rows = []
    for name in loops:
        row = [name]
        for bandwidth in bandwidths:
            seconds, guide = (median(events, "seconds", bandwidth=bandwidth, loop=loop) for loop in (name, "guide"))
            row += [f"{seconds:.1f}", "1" if name == "guide" else f"{seconds / guide:.2f}"]
        rows.append([*row, f"{median(events, 'sent', loop=name) / 1e6:.1f}"])
    columns = [text for bandwidth in bandwidths for text in (f"{bandwidth}, s", "/ guide")]
    return format_table(["loop", *columns, "MB sent by a machine"], rows), events


def main() -> None:
    """Run the requested measurements, and write the tables and the events."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.16, help="size of the graph, 1 for that of ogbn-products")
    parser.add_argument("--rounds", type=int, default=3, help="number of measured epochs of each loop")
    parser.add_argument("--bandwidths", nargs="+", default=BANDWIDTHS, choices=BANDWIDTHS)
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    parser.add_argument("--only", choices=["rows", "times", "accuracy"])
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    loops = [loop_name(TIMED_SHARE, rule) for rule in options.rules if rule != RULES[0]]
    partition = partition_of(options.scale, 2, options.root)
    OUT.mkdir(exist_ok=True)
    texts, measured = [f"{describe_computer()}, scale {options.scale}\n"], {}
    for name, measure in (
        ("rows", lambda: count_rows(partition, options.rounds, options.rules)),
        ("times", lambda: compare_times(partition, options.rounds, options.bandwidths, options.rules)),
        ("accuracy", lambda: compare_accuracies(partition, 10, loops, list(range(SEEDS)))),
    ):
        if options.only in (None, name):
            text, measured[name] = measure()
            texts.append(text + "\n")
            print(f"\n{text}\n", flush=True)
    (OUT / "scale.md").write_text("\n".join(texts))
    (OUT / "scale.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
