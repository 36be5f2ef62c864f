"""Compare the training loop with the guide's loop and with the computation alone: `make bench`.

    python benchmarks/bench.py                   # all measurements, about 10 minutes
    python benchmarks/bench.py --only loops      # or: techniques, accuracy, start, threads

The job has two emulated machines with one core, one server and one trainer each. The model is GraphSAGE 3 x 256 with
fan-out 15,10,5, batch size 1000 and Adam at 0.003. The data set is synthetic-products at scale 0.04 in two parts. The
loops alternate after every epoch in the same processes, so other load affects all of them. Compare the ratios and not
the seconds.

The tables are printed and written to benchmarks/out/bench.md, all measurements to benchmarks/out/bench.json.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs import describe_computer, median, partition_of, run_job, run_training

from tutorial_lib.trainer.config import TrainConfig

OUT = Path(__file__).with_name("out")
CONFIG = TrainConfig(fanouts=(15, 10, 5), batch_size=1000, hidden_size=256, learning_rate=0.003)
BANDWIDTHS = ("unshaped", "1gbit", "200mbit")
# Upper limits of our epoch divided by an epoch of the guide's loop, and by the computation alone
TARGETS = {"unshaped": (0.80, 1.15), "1gbit": (0.65, 1.20), "200mbit": (0.35, 1.30)}
LOOPS = ("guide", "ours", "alone", "ours alone")
TECHNIQUES = (  # see loops_job.py
    "ours",
    "ours, no batches ahead",
    "ours, no cached rows",
    "ours, 10% of the remote rows cached",
    "ours, 30% of the remote rows cached",
    "ours, no cached adjacency",
    "ours, no cache",
    "ours, no cache, no batches ahead",
    "ours, rows copied, means in the model",
    "ours, DGL's loader",
)
Events = list[dict[str, Any]]


def format_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def compare_loops(partition: Any, rounds: int) -> tuple[str, Events]:
    """Measure the loops, and return the table with the targets and the events."""
    settings = {"config": CONFIG.to_dict(), "bandwidths": BANDWIDTHS, "warm": 3, "rounds": rounds, "loops": LOOPS}
    events = run_job(partition, settings, on_event=show_progress)
    rows = []
    for bandwidth in BANDWIDTHS:
        seconds = {name: median(events, "seconds", bandwidth=bandwidth, loop=name) for name in LOOPS}
        sent = {name: median(events, "sent", bandwidth=bandwidth, loop=name) / 1e6 for name in LOOPS}
        ratios = (seconds["ours"] / seconds["guide"], seconds["ours"] / seconds["alone"])
        verdicts = [
            f"{ratio:.2f} (target {target:.2f}{'' if ratio <= target else ', MISSED'})"
            for ratio, target in zip(ratios, TARGETS[bandwidth], strict=True)
        ]
        times = [f"{seconds[name]:.2f}" for name in LOOPS]
        rows.append([bandwidth, *verdicts, *times, f"{sent['guide']:.1f}", f"{sent['ours']:.1f}"])
    head = ["bandwidth", "our epoch / guide loop", "our epoch / compute alone"]
    head += [f"{name}, s" for name in ("guide", "ours", "compute alone", "our compute alone")]
    return format_table([*head, "guide, MB sent", "ours, MB sent"], rows), events


def compare_techniques(
    partition: Any, rounds: int, bandwidths: Sequence[str], techniques: Sequence[str]
) -> tuple[str, Events]:
    """Measure our loop without each of its techniques."""
    names = ["guide", *techniques]
    settings = {"config": CONFIG.to_dict(), "bandwidths": bandwidths, "warm": 2, "rounds": rounds, "loops": names}
    events = run_job(partition, settings, on_event=show_progress)
    rows = []
    for name in techniques:
        row = [name]
        for bandwidth in bandwidths:
            seconds, ours, guide = (
                median(events, "seconds", bandwidth=bandwidth, loop=loop) for loop in (name, "ours", "guide")
            )
            row += [f"{seconds / ours:.2f}", f"{seconds / guide:.2f}"]
        last = [event for event in events if event["kind"] == "timed" and event["loop"] == name][-1]
        requested, hits = (last["cache"].get(key, 0) for key in ("requested", "hits"))
        row += [
            f"{median(events, 'sent', bandwidth='unshaped', loop=name) / 1e6:.1f}",
            f"{hits / requested:.0%}" if requested else "",
        ]
        rows.append(row)
    ratios = [text for bandwidth in bandwidths for text in (f"{bandwidth}: / ours", "/ guide")]
    text = format_table(["loop", *ratios, "MB sent", "cache hits"], rows)
    more_rows = []
    for title, options, samplers in (
        ("freed memory returned to the kernel, small pages", {"keep_freed_memory": False}, 0),
        ("the guide's loop with one sampler process per trainer", {"loops": ["guide", "alone"]}, 1),
    ):
        settings = {"config": CONFIG.to_dict(), "bandwidths": bandwidths, "warm": 3, "rounds": rounds, "loops": LOOPS}
        settings |= options
        job_events = run_job(partition, settings, samplers=samplers, on_event=show_progress)
        events += [{**event, "job": title} for event in job_events]
        seconds = {
            name: [median(job_events, "seconds", bandwidth=bandwidth, loop=name) for bandwidth in bandwidths]
            for name in LOOPS
        }
        row = [title, ", ".join(f"{value:.2f}" for value in seconds["guide"])]
        for name in ("guide", "ours"):
            pairs = zip(seconds[name], seconds["alone"], strict=True)
            row.append(", ".join(f"{own / alone:.2f}" for own, alone in pairs) if name in settings["loops"] else "")
        more_rows.append(row)
    head = [f"separate job ({', '.join(bandwidths)})", "guide, s", "guide / compute alone", "ours / compute alone"]
    return text + "\n\n" + format_table(head, more_rows), events


def compare_accuracies(
    partition: Any, epochs: int, loops: Sequence[str] = ("guide", "ours"), seeds: Sequence[int] = (0, 1, 2)
) -> tuple[str, Events]:
    """Return the exact test accuracy of each loop after equal epochs, and the differences from the first loop."""
    settings = {
        "config": CONFIG.to_dict(),
        "measurement": "accuracy",
        "loops": loops,
        "seeds": seeds,
        "epochs": epochs,
    }
    events = [event for event in run_job(partition, settings, on_event=show_progress) if event["kind"] == "learned"]
    accuracies = {(event["loop"], event["seed"]): event["test_accuracy"] for event in events}
    means = {name: mean_accuracy(accuracies, name) for name in loops}
    rows = [[name, *(f"{accuracies[name, seed]:.4f}" for seed in seeds), f"{means[name]:.4f}"] for name in loops]
    text = format_table([f"test accuracy after {epochs} epochs", *(f"seed {seed}" for seed in seeds), "mean"], rows)
    others = (f"{name} {means[name] - means[loops[0]]:+.4f}" for name in loops[1:])
    return f"{text}\n\nDifference of the means to {loops[0]}: {', '.join(others)} (target: within 0.005).", events


def measure_starts(partition: Any, times: int) -> tuple[str, Events]:
    """Measure the seconds from the command to each stage of train."""
    rows, events = [], []
    for _ in range(times):
        run_events = run_training(partition, CONFIG)
        begin = run_events[0]["time"]
        reached = {
            stage: max(event["time"] for event in run_events if begins_stage(event, stage)) - begin for stage in STAGES
        }
        rows.append([f"{reached[stage]:.1f}" for stage in STAGES])
        events += run_events
    table = format_table([f"seconds until {stage}" for stage in STAGES], rows)
    return f"{table}\n\nTarget: the first step by 6 s.", events


def compare_threads(partition_into: Callable[[int], Any], rounds: int) -> tuple[str, Events]:
    """Measure the loops with one, two and all threads per trainer, on one machine with all cores and on two."""
    cores, rows, events = len(os.sched_getaffinity(0)), [], []
    for machines in (1, 2):
        for threads in sorted({1, 2, cores}):
            settings = {
                "config": CONFIG.to_dict(),
                "bandwidths": ("unshaped",),
                "warm": 2,
                "rounds": rounds,
                "loops": LOOPS,
            }
            job_events = run_job(partition_into(machines), settings, threads=threads, on_event=show_progress)
            events += [{**event, "machines": machines, "threads": threads} for event in job_events]
            rows.append([machines, threads, *(f"{median(job_events, 'seconds', loop=name):.2f}" for name in LOOPS)])
    return format_table(["machines", "threads of a trainer", *(f"{name}, s" for name in LOOPS)], rows), events


STAGES = ("servers are started", "trainers are started", "all have joined", "the first step is done", "all has ended")


def begins_stage(event: dict[str, Any], stage: str) -> bool:
    """Return whether a stage begins with this event, or with the last such event of all ranks."""
    kind = event["kind"]
    return {
        STAGES[0]: kind == "stage" and event.get("stage") == "servers",
        STAGES[1]: kind == "stage" and event.get("stage") == "trainers",
        STAGES[2]: kind == "joined",
        STAGES[3]: kind == "step" and event.get("epoch") == 0 and event.get("step") == 0,
        STAGES[4]: kind == "end",
    }[stage]


def mean_accuracy(accuracies: dict[tuple[str, int], float], name: str) -> float:
    """Return the mean accuracy of a loop over the seeds."""
    return statistics.mean(accuracy for (loop, _), accuracy in accuracies.items() if loop == name)


def show_progress(event: dict[str, Any]) -> None:
    """Print a line for each epoch of rank 0."""
    if event.get("rank") == 0 and event["kind"] == "timed":
        print("  {bandwidth:9} round {round:2}  {seconds:6.2f} s  {loop}".format(**event), flush=True)
    elif event.get("rank") == 0 and event["kind"] == "learned":
        print("  seed {seed}  {test_accuracy:.4f}  {loop}".format(**event), flush=True)


def main() -> None:
    """Run the requested measurements, and write the tables and the events."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["loops", "techniques", "accuracy", "start", "threads"], action="append")
    parser.add_argument("--rounds", type=int, default=7, help="number of measured epochs of each loop")
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs before accuracies are compared")
    parser.add_argument("--scale", type=float, default=0.04, help="size of the graph, 1 for that of ogbn-products")
    parser.add_argument("--bandwidths", nargs="+", choices=BANDWIDTHS, default=BANDWIDTHS, help="of techniques")
    parser.add_argument("--techniques", nargs="+", choices=TECHNIQUES, default=TECHNIQUES, help="default: all")
    parser.add_argument("--root", type=Path, help="folder of caches and partitions (default: data/)")
    options = parser.parse_args()
    partition = partition_of(options.scale, 2, options.root)
    OUT.mkdir(exist_ok=True)
    texts = [f"{describe_computer()}\n"]
    measured: dict[str, Any] = {}
    for name, measure in (
        ("loops", lambda: compare_loops(partition, options.rounds)),
        (
            "techniques",
            lambda: compare_techniques(partition, max(3, options.rounds // 2), options.bandwidths, options.techniques),
        ),
        ("accuracy", lambda: compare_accuracies(partition, options.epochs)),
        ("start", lambda: measure_starts(partition, 3)),
        ("threads", lambda: compare_threads(lambda parts: partition_of(options.scale, parts, options.root), 3)),
    ):
        if options.only and name not in options.only:
            continue
        print(f"{name}:", flush=True)
        text, measured[name] = measure()
        texts.append(text + "\n")
        print(f"\n{text}\n", flush=True)
    (OUT / "bench.md").write_text("\n".join(texts))
    (OUT / "bench.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
