"""Compare train with GraphBolt, GLT and DGL's guide: `make bench-peers`.

    python benchmarks/peers.py                                   # scale 0.04, 20 epochs, 3 rounds, accuracy
    python benchmarks/peers.py --scale 0.16 --epochs 5 --wires unshaped 200mbit --no-accuracy
    python benchmarks/peers.py --scale 0.16 --epochs 10 --seeds 0 --kept-memory   # with the same malloc in all systems
    python benchmarks/peers.py --tables                          # print the tables of all measured runs

All systems train GraphSAGE-mean 3 x 256 on the same graph, split and parts, with fan-out 15,10,5, batch size 1000 per
rank, Adam at 0.003 and dropout 0.5. Each of the two ranks has one core and one thread. Ours, the guide and GLT run on
the same two emulated machines, which exist before the time begins. GraphBolt runs on one machine without a network.
Each system has a warm-up run, in which the memory is measured. Then the systems alternate in each round, and each round
has another seed. A calibration before and after each run detects a disturbed computer. Such a run is repeated once (see
--tries), and the tables count the runs that remained disturbed.

The runs are kept in benchmarks/out/peers, with a line for each in runs.jsonl.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bench import format_table

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks" / "peers"
OUT = ROOT / "benchmarks" / "out" / "peers"
GLT_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
MACHINES = "peers"
SYSTEMS = ("ours", "GraphBolt", "GLT", "GLT cached", "guide")
DISTURBED = 1.25  # a calibration that takes longer than this times the fastest one marks the run as disturbed
# What ``train`` sets for its trainers (compat/settings.py), as variables of any program with glibc
KEPT_MEMORY = {
    "hugetlb": 1,
    "trim_threshold": 2**31 - 1,
    "top_pad": 64 << 20,
    "mmap_threshold": 32 << 20,
    "mmap_max": 0,
}
TO_ACCURACY = 0.99  # of the best validation accuracy of any system
Run = dict[str, Any]


def tutorial_lib(*words: object) -> list[str]:
    """Return a command of tutorial_lib."""
    return [sys.executable, "-m", "tutorial_lib", *map(str, words)]


def commands_of(system: str, data: Path, out: Path, epochs: int, seed: int) -> list[list[str]]:
    """Return the commands of a run, which start at the same time."""
    options = ["--data", str(data), "--out", str(out), "--epochs", str(epochs), "--seed", str(seed)]
    if system == "ours":
        return [[sys.executable, str(PEERS / "ours.py"), *options, MACHINES]]
    if system == "guide":
        config = json.loads((data / "config.json").read_text())["part_config"]
        script = [sys.executable, PEERS / "guide.py", *options]
        where = ["--part_config", config, "--ip_config", out / "ip_config.txt", "--out", out / "logs"]
        return [tutorial_lib("launch", "--on", MACHINES, *where, "--num_omp_threads", 1, *script)]
    if system == "GraphBolt":
        script = [sys.executable, str(PEERS / "graphbolt.py"), *options]
        return [["env", f"RANK={rank}", "OMP_NUM_THREADS=1", *script] for rank in range(2)]
    commands = []
    for rank in range(2):
        # GLT and gloo must not choose the loopback interface.
        variables = [f"RANK={rank}", "MASTER_ADDR=10.77.0.1", "MASTER_PORT=29500", "OMP_NUM_THREADS=1"]
        variables += ["GLOO_SOCKET_IFNAME=eth0", "TP_SOCKET_IFNAME=eth0"]
        script = ["env", *variables, GLT_PYTHON, PEERS / "glt.py", *options]
        cached = ["--cached"] * (system == "GLT cached")
        commands.append(tutorial_lib("on", "--name", MACHINES, f"machine-{rank}", *script, *cached))
    return commands


def calibrate() -> float:
    """Return the seconds of a fixed computation on each core at the same time."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(len, [""] * 2)
        start = time.perf_counter()
        pool.map(_compute, range(2), chunksize=1)
        return time.perf_counter() - start


def _compute(number: int) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
    a = np.ones((300, 300), np.float32)
    for _ in range(100):
        a = a @ a / 300
    sum(k for k in range(3_000_000))


def sent_bytes() -> int:
    """Return the bytes that both machines have sent so far."""
    total = 0
    for rank in range(2):
        command = tutorial_lib("on", "--name", MACHINES, f"machine-{rank}", "cat", "/proc/net/dev")
        lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()[2:]
        total += sum(int(line.split(":")[1].split()[8]) for line in lines if not line.strip().startswith("lo:"))
    return total


def pss_of(processes: list[subprocess.Popen]) -> dict[int, tuple[str, int]]:
    """Return the command and the PSS in bytes of all descendants."""
    found = {}
    for process in processes:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for member in family:
            try:
                text = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
                found[member.pid] = (" ".join(member.cmdline())[:150], int(text.split("\nPss:")[1].split()[0]) * 1024)
            except (psutil.Error, OSError, IndexError):
                continue
    return found


class Watcher(threading.Thread):
    """Keeps each checkpoint of ours, and if ``memory`` the largest sum of PSS of all processes."""

    def __init__(self, processes: list[subprocess.Popen], out: Path, memory: bool) -> None:
        super().__init__(daemon=True)
        self.processes, self.out, self.memory, self.largest = processes, out, memory, {}
        self.ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ended.wait(0.1):
            for file in self.out.glob("run/checkpoint/epoch-*/model.safetensors"):
                kept = self.out / f"weights-{int(file.parent.name[6:10]) - 1}.safetensors"
                if not kept.exists() and (self.out / "run/checkpoint/manifest.json").exists():
                    os.link(file, kept)
            number += 1
            if self.memory and number % 10 == 0:
                found = pss_of(self.processes)
                if sum(pss for _, pss in found.values()) > sum(pss for _, pss in self.largest.values()):
                    self.largest = found


def folder_of(settings: Run) -> Path:
    """Return the folder of the runs with these settings."""
    return OUT / f"{settings['scale']}-{settings['epochs']}{'-kept' * settings['kept_memory']}"


def execute(system: str, wire: str, data: Path, settings: Run, *, memory: bool) -> Run:
    """Run one system, and return its measurements."""
    epochs, seed = settings["epochs"], settings["seed"]
    out = folder_of(settings) / f"{system.replace(' ', '-')}-{wire}-{seed}{'-warm' * memory}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    subprocess.run(tutorial_lib("machines", "wire", "all", wire, "--name", MACHINES), check=True, cwd=ROOT)
    before = sent_bytes()
    with (out / "log.txt").open("w") as log:
        start = time.time()
        processes = [
            subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            for command in commands_of(system, data, out, epochs, seed)
        ]
        watcher = Watcher(processes, out, memory)
        watcher.start()
        codes = [process.wait(timeout=1800) for process in processes]
        end = time.time()
    watcher.ended.set()
    watcher.join()
    if any(codes):
        raise SystemExit(f"{system} failed with exit codes {codes}, see {out / 'log.txt'}")
    events = [json.loads(line) for line in (out / ("run" if system == "ours" else ".") / "events.jsonl").open()]
    epochs_done = [event for event in events if event["kind"] == "epoch"]
    if system == "ours":
        phases = ("sampling", "pull", "forward", "backward", "update")
        first = next(e for e in events if e["kind"] == "step" and e["rank"] == 0)
        begin = first["time"] - sum(first[phase] for phase in phases)
    else:
        begin = next(event["time"] for event in events if event["kind"] == "start")
    return {
        **settings,
        "system": system,
        "wire": wire,
        "folder": str(out),
        "start": begin - start,
        "command": end - start,
        "end": end - epochs_done[-1]["time"],
        "times": [event["time"] - start for event in epochs_done],
        "seconds": [event["seconds"] for event in epochs_done],
        "sent": sent_bytes() - before,
        "pss": watcher.largest,
    }


def measure(system: str, wire: str, data: Path, settings: Run, *, memory: bool, tries: int) -> None:
    """Run one system until a run is not disturbed, or until the last try. A warm-up run has one try."""
    for _ in range(1 if memory else tries):
        before = calibrate()
        run = execute(system, wire, data, settings, memory=memory)
        run["calibration"] = [before, calibrate()]
        fastest = min(json.loads(line)["calibration"][0] for line in [*read_lines(), json.dumps(run)])
        run["disturbed"] = max(run["calibration"]) > DISTURBED * fastest
        with (OUT / "runs.jsonl").open("a") as file:
            file.write(json.dumps({**run, "warm": memory}) + "\n")
        epoch = statistics.median(run["seconds"][1:] or run["seconds"])
        note = "disturbed, " * run["disturbed"]
        print(
            f"  {wire:9} seed {settings['seed']} {system:11} {note}{epoch:6.2f} s per epoch, start {run['start']:5.1f},"
            f" end {run['end']:5.1f}, command {run['command']:6.1f} s, {run['sent'] / 1e6:7.1f} MB,"
            f" PSS {sum(pss for _, pss in run['pss'].values()) / 1e9:.2f} GB",
            flush=True,
        )
        if not run["disturbed"]:
            break


def read_lines() -> list[str]:
    """Return the lines of all runs so far."""
    path = OUT / "runs.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def prepare(scale: float, glt: bool) -> Path:
    """Return a folder with the data of a scale, and report the time to write it."""
    data = OUT / f"data-{scale}"
    if (data / "config.json").exists() and (not glt or (data / "glt-cached").exists()):
        return data
    start = time.perf_counter()
    subprocess.run([sys.executable, str(PEERS / "prepare.py"), str(scale), str(data)], check=True, cwd=ROOT)
    print(f"parts of ours and the guide: {time.perf_counter() - start:.1f} s", flush=True)
    if glt:
        start = time.perf_counter()
        subprocess.run([str(GLT_PYTHON), str(PEERS / "glt.py"), "--prepare", str(data)], check=True, cwd=ROOT)
        print(f"parts of GLT, without and with caches: {time.perf_counter() - start:.1f} s", flush=True)
    return data


def spread(values: list[float], digits: int = 1) -> str:
    """Return the median and the range of some values."""
    if not values:
        return ""
    low, middle, high = min(values), statistics.median(values), max(values)
    text = f"{middle:.{digits}f}"
    return text if len(values) == 1 else f"{text} ({low:.{digits}f} to {high:.{digits}f})"


def table(runs: list[Run]) -> str:
    """Return a table of runs with equal scale, number of epochs and bandwidth."""
    chosen = {name: [run for run in runs if run["system"] == name and not run["warm"]] for name in SYSTEMS}
    warm = {run["system"]: run for run in runs if run["warm"]}
    epoch = {
        name: {run["seed"]: statistics.median(run["seconds"][1:]) for run in own} for name, own in chosen.items() if own
    }
    accuracy = {name: [read_accuracy(run) for run in own] for name, own in chosen.items() if own}
    bests = [max(val for val, _ in found.values()) for runs_of in accuracy.values() for found in runs_of if found]
    rows = []
    for name, own in chosen.items():
        if not own:
            continue
        ours = epoch.get("ours", {})
        pairs = [seconds / ours[seed] for seed, seconds in epoch[name].items() if seed in ours]
        pss = sum(pss for _, pss in warm[name]["pss"].values()) / 1e9 if name in warm else float("nan")
        row = [name, spread([*epoch[name].values()], 2), spread(pairs, 2)]
        row += [spread([run[field] for run in own]) for field in ("start", "end", "command")]
        row += [spread([run["sent"] / 1e6 for run in own], 0), f"{pss:.2f}"]
        if bests:
            scores = [max(found.values()) for found in accuracy[name] if found]
            row += [f"{statistics.mean(column):.4f}" for column in zip(*scores, strict=True)]
            reached = [
                time_to(run, found, TO_ACCURACY * max(bests)) for run, found in zip(own, accuracy[name], strict=True)
            ]
            row.append(spread(reached))
        rows.append(row)
    head = ["system", "s per epoch", "/ ours", "start, s", "end, s", "command, s", "MB sent", "PSS, GB"]
    return format_table([*head, *["val", "test", "s to 99 % of the best val"] * bool(bests)], rows)


def read_accuracy(run: Run) -> dict[int, list[float]]:
    """Return the exact accuracies of a run by epoch, if they were computed."""
    path = Path(run["folder"], "accuracy.json")
    return {int(epoch): pair for epoch, pair in json.loads(path.read_text()).items()} if path.exists() else {}


def time_to(run: Run, found: dict[int, list[float]], wanted: float) -> float:
    """Return the seconds from the command to the end of the first epoch with this validation accuracy."""
    reached = [epoch for epoch, (val, _) in sorted(found.items()) if val >= wanted]
    return run["times"][reached[0]] if reached else float("nan")


def print_tables() -> None:
    """Print a table for each scale, number of epochs, bandwidth and malloc, and the number of disturbed runs in it."""
    runs = [*map(json.loads, read_lines())]
    groups: dict[tuple, dict] = {}
    for run in runs:  # a repeated run replaces the earlier one
        group = (run["scale"], run["epochs"], run["wire"], run["kept_memory"])
        groups.setdefault(group, {})[run["system"], run["seed"], run["warm"]] = run
    for (scale, epochs, wire, kept), own in sorted(groups.items(), key=str):
        if not any(not warm for _, _, warm in own):  # only warm-up runs were made
            own = {(system, seed, False): {**run, "warm": False} for (system, seed, _), run in own.items()} | own
        disturbed = sum(run["disturbed"] for run in own.values() if not run["warm"])
        count = sum(not run["warm"] for run in own.values())
        head = f"scale {scale}, {epochs} epochs, {wire}{', kept memory' * kept}, {disturbed} of {count} runs disturbed"
        print(f"\n{head}\n\n{table([*own.values()])}")


def main() -> None:
    """Measure, evaluate, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.04, help="size of the graph, 1 for that of ogbn-products")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="one round for each seed")
    parser.add_argument("--tries", type=int, default=2, help="of a run on a disturbed computer")
    parser.add_argument("--wires", nargs="+", default=["unshaped"], choices=["unshaped", "1gbit", "200mbit"])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--kept-memory", action="store_true", help="all systems have the settings of malloc of ours")
    parser.add_argument("--no-accuracy", action="store_true", help="do not evaluate the weights")
    parser.add_argument("--no-memory", action="store_true", help="no warm-up runs")
    parser.add_argument("--tables", action="store_true", help="print the tables of the measured runs only")
    options = parser.parse_args()
    if options.tables:
        print_tables()
        return
    OUT.mkdir(parents=True, exist_ok=True)
    if options.kept_memory:  # also for the machines, and so for the processes on them
        os.environ["GLIBC_TUNABLES"] = ":".join(f"glibc.malloc.{name}={value}" for name, value in KEPT_MEMORY.items())
    data = prepare(options.scale, any("GLT" in name for name in options.systems))
    subprocess.run(tutorial_lib("machines", "start", 2, "--name", MACHINES), check=True, cwd=ROOT)
    try:
        for wire in options.wires:
            systems = [name for name in options.systems if name != "GraphBolt" or wire == "unshaped"]
            warm_up = [] if options.no_memory or wire != options.wires[0] else [None]
            for seed in [*warm_up, *options.seeds]:
                settings = {"scale": options.scale, "epochs": options.epochs, "seed": seed or 0}
                settings["kept_memory"] = options.kept_memory
                for system in systems:
                    measure(system, wire, data, settings, memory=seed is None, tries=options.tries)
    finally:
        subprocess.run(tutorial_lib("machines", "stop", MACHINES), check=True, cwd=ROOT)
    if not options.no_accuracy:
        runs = sorted(folder_of(vars(options)).glob("*-unshaped-[0-9]"))
        command = [sys.executable, str(PEERS / "evaluate.py"), str(data), *map(str, runs)]
        subprocess.run(command, check=True, cwd=ROOT)
    print_tables()


if __name__ == "__main__":
    main()
