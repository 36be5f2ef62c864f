"""The guide's loop, ours and the computing alone, side by side: `make bench`.

    python benchmarks/bench.py                   # everything, about 10 minutes
    python benchmarks/bench.py --only loops      # or: techniques, accuracy, start, threads

Two emulated machines with one core each, one server and one trainer on each, GraphSAGE 3 x 256, fan-out 15,10,5, batch
1000, Adam at 0.003, synthetic-products at scale 0.04 in two parts. The loops take turns, epoch by epoch,
in the same processes, so that whatever else the computer does meets all of them; compare the ratios, not the seconds.

The tables are printed and written to benchmarks/out/bench.md, every single measurement to benchmarks/out/bench.json.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs import computer, median, partition_of, run_job, run_training

from tutorial_lib.trainer.config import TrainConfig

OUT = Path(__file__).with_name("out")
CONFIG = TrainConfig(fanouts=(15, 10, 5), batch_size=1000, hidden_size=256, learning_rate=0.003)
SPEEDS = ("unshaped", "1gbit", "200mbit")
TARGETS = {"unshaped": (0.80, 1.15), "1gbit": (0.65, 1.20), "200mbit": (0.35, 1.30)}
LOOPS = ("guide", "ours", "alone", "ours alone")
TECHNIQUES = (
    "ours",
    "ours, nothing ahead",
    "ours, no rows kept",
    "ours, 10% of the remote rows kept",
    "ours, 30% of the remote rows kept",
    "ours, no lists kept",
    "ours, nothing kept",
    "ours, nothing kept, nothing ahead",
    "ours, rows copied, means in the model",
    "ours, DGL's loader",
)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def loops(partition: Any, rounds: int) -> tuple[str, list[dict[str, Any]]]:
    """The targets' table."""
    settings = {"config": CONFIG.to_dict(), "speeds": SPEEDS, "warm": 3, "rounds": rounds, "loops": LOOPS}
    events = run_job(partition, settings, on_event=show)
    rows = []
    for wire in SPEEDS:
        seconds = {name: median(events, "seconds", wire=wire, loop=name) for name in LOOPS}
        sent = {name: median(events, "sent", wire=wire, loop=name) / 1e6 for name in LOOPS}
        ratios = (seconds["ours"] / seconds["guide"], seconds["ours"] / seconds["alone"])
        verdicts = [
            f"{found:.2f} (target {most:.2f}{'' if found <= most else ', MISSED'})"
            for found, most in zip(ratios, TARGETS[wire], strict=True)
        ]
        times = [f"{seconds[name]:.2f}" for name in LOOPS]
        rows.append([wire, *verdicts, *times, f"{sent['guide']:.1f}", f"{sent['ours']:.1f}"])
    head = ["wire", "our epoch / guide loop", "our epoch / compute alone"]
    head += [f"{name}, s" for name in ("guide", "ours", "compute alone", "our compute alone")]
    return table([*head, "guide, MB sent", "ours, MB sent"], rows), events


def techniques(partition: Any, rounds: int) -> tuple[str, list[dict[str, Any]]]:
    """Everything that makes our loop faster, taken away one by one."""
    names = ["guide", *TECHNIQUES]
    settings = {"config": CONFIG.to_dict(), "speeds": SPEEDS, "warm": 2, "rounds": rounds, "loops": names}
    events = run_job(partition, settings, on_event=show)
    rows = []
    for name in TECHNIQUES:
        row = [name]
        for wire in SPEEDS:
            own = median(events, "seconds", wire=wire, loop=name)
            row.append(f"{own / median(events, 'seconds', wire=wire, loop='ours'):.2f}")
            row.append(f"{own / median(events, 'seconds', wire=wire, loop='guide'):.2f}")
        last = [event for event in events if event["kind"] == "timed" and event["loop"] == name][-1]
        asked, found = (last["pipeline"].get(key, 0) for key in ("rows_asked", "rows_found"))
        row += [
            f"{median(events, 'sent', wire='unshaped', loop=name) / 1e6:.1f}",
            f"{found / asked:.0%}" if asked else "",
        ]
        rows.append(row)
    head = (
        ["loop"] + [text for wire in SPEEDS for text in (f"{wire}: / ours", "/ guide")] + ["MB sent", "rows found here"]
    )
    text = table(head, rows)
    more = []
    for title, options, samplers in (
        ("freed memory given back to the kernel, small pages", {"keep_freed_memory": False}, 0),
        ("the guide's loop with one sampler process per trainer", {"loops": ["guide", "alone"]}, 1),
    ):
        settings = {"config": CONFIG.to_dict(), "speeds": SPEEDS, "warm": 3, "rounds": rounds, "loops": LOOPS}
        settings |= options
        found = run_job(partition, settings, samplers=samplers, on_event=show)
        events += [{**event, "job": title} for event in found]
        seconds = {name: [median(found, "seconds", wire=wire, loop=name) for wire in SPEEDS] for name in LOOPS}
        row = [title, ", ".join(f"{value:.2f}" for value in seconds["guide"])]
        for name in ("guide", "ours"):
            pairs = zip(seconds[name], seconds["alone"], strict=True)
            row.append(", ".join(f"{own / alone:.2f}" for own, alone in pairs) if name in settings["loops"] else "")
        more.append(row)
    head = ["job of its own (unshaped, 1gbit, 200mbit)", "guide, s", "guide / compute alone", "ours / compute alone"]
    return text + "\n\n" + table(head, more), events


def accuracies(
    partition: Any, epochs: int, loops: Sequence[str] = ("guide", "ours"), seeds: Sequence[int] = (0, 1, 2)
) -> tuple[str, list[dict[str, Any]]]:
    """Exact, over all test nodes, after the same number of epochs; how far the others are from the first loop."""
    settings = {"config": CONFIG.to_dict(), "what": "learn", "loops": loops, "seeds": seeds, "epochs": epochs}
    events = [event for event in run_job(partition, settings, on_event=show) if event["kind"] == "learned"]
    found = {(event["loop"], event["seed"]): event["test_accuracy"] for event in events}
    rows = [[name, *(f"{found[name, seed]:.4f}" for seed in seeds), f"{mean_of(found, name):.4f}"] for name in loops]
    text = table([f"test accuracy after {epochs} epochs", *(f"seed {seed}" for seed in seeds), "mean"], rows)
    others = (f"{name} {mean_of(found, name) - mean_of(found, loops[0]):+.4f}" for name in loops[1:])
    return f"{text}\n\nDifference of the means to {loops[0]}: {', '.join(others)} (target: within 0.005).", events


def starts(partition: Any, times: int) -> tuple[str, list[dict[str, Any]]]:
    """From the command to the first step: whole runs of `train`, as their events tell."""
    rows, events = [], []
    for _ in range(times):
        found = run_training(partition, CONFIG)
        begin = found[0]["time"]
        when = {name: max(e["time"] for e in found if match(e, name)) - begin for name in STAGES}
        rows.append([f"{when[name]:.1f}" for name in STAGES])
        events += found
    return table([f"seconds until {name}" for name in STAGES], rows) + "\n\nTarget: the first step by 8 s.", events


def threads(partition_into: Callable[[int], Any], rounds: int) -> tuple[str, list[dict[str, Any]]]:
    """The loops with one, two and all threads in each trainer, on one machine with all cores and on two."""
    cores, rows, events = len(os.sched_getaffinity(0)), [], []
    for machines in (1, 2):
        for count in sorted({1, 2, cores}):
            settings = {
                "config": CONFIG.to_dict(),
                "speeds": ("unshaped",),
                "warm": 2,
                "rounds": rounds,
                "loops": LOOPS,
            }
            found = run_job(partition_into(machines), settings, threads=count, on_event=show)
            events += [{**event, "machines": machines, "threads": count} for event in found]
            rows.append([machines, count, *(f"{median(found, 'seconds', loop=name):.2f}" for name in LOOPS)])
    return table(["machines", "threads of a trainer", *(f"{name}, s" for name in LOOPS)], rows), events


STAGES = ("servers are started", "trainers are started", "all have joined", "the first step is done", "all has ended")


def match(event: dict[str, Any], stage: str) -> bool:
    """Whether an event tells that a stage is reached."""
    kind = event["kind"]
    return {
        STAGES[0]: kind == "stage" and event.get("stage") == "servers",
        STAGES[1]: kind == "stage" and event.get("stage") == "trainers",
        STAGES[2]: kind == "joined",
        STAGES[3]: kind == "step" and event.get("epoch") == 0 and event.get("step") == 0,
        STAGES[4]: kind == "end",
    }[stage]


def mean_of(found: dict[tuple[str, int], float], name: str) -> float:
    """Over the seeds."""
    return statistics.mean(accuracy for (loop, _), accuracy in found.items() if loop == name)


def show(event: dict[str, Any]) -> None:
    """Progress: a line for each epoch of rank 0."""
    if event.get("rank") == 0 and event["kind"] == "timed":
        print("  {wire:9} round {round:2}  {seconds:6.2f} s  {loop}".format(**event), flush=True)
    elif event.get("rank") == 0 and event["kind"] == "learned":
        print("  seed {seed}  {test_accuracy:.4f}  {loop}".format(**event), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["loops", "techniques", "accuracy", "start", "threads"], action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=10, help="of the comparison of accuracies")
    parser.add_argument("--scale", type=float, default=0.04)
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    partition = partition_of(options.scale, 2, options.root)
    OUT.mkdir(exist_ok=True)
    parts = [f"{computer()}\n"]
    measured: dict[str, Any] = {}
    for name, measure in (
        ("loops", lambda: loops(partition, options.rounds)),
        ("techniques", lambda: techniques(partition, max(3, options.rounds // 2))),
        ("accuracy", lambda: accuracies(partition, options.epochs)),
        ("start", lambda: starts(partition, 3)),
        ("threads", lambda: threads(lambda parts: partition_of(options.scale, parts, options.root), 3)),
    ):
        if options.only and name not in options.only:
            continue
        print(f"{name}:", flush=True)
        text, measured[name] = measure()
        parts.append(text + "\n")
        print(f"\n{text}\n", flush=True)
    (OUT / "bench.md").write_text("\n".join(parts))
    (OUT / "bench.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
