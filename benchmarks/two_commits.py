"""Compare two commits: scores, losses and the files of the run folder on one matrix of jobs.

    python benchmarks/two_commits.py OLD [NEW]       # checkouts with a .venv each; NEW is this one by default

The matrix is every task, in a single process and on two emulated machines, with three seeds, and a resumed run with
seed 0. A difference is within the noise if it is at most three standard deviations of the three seeds, with 0.01 as the
smallest standard deviation.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DATASETS = {"node": "products", "link": "products", "embedding": "products", "hetero": "academic"}
PLACES = {"one process": ["--single-process"], "two machines": ["--emulate", "2"]}
SMALL = ["--scale", "0.01", "--fanouts", "5,5", "--hidden-size", "32"]
SEEDS, EPOCHS = (0, 1, 2), 3
SIGMAS, SMALLEST = 3, 0.01


def train(checkout: Path, out: Path, *options: str) -> None:
    """Run ``train`` of a checkout, or exit with its output."""
    command = [checkout / ".venv" / "bin" / "python", "-m", "tutorial_lib", "train", *options, "--out", out]
    done = subprocess.run(list(map(str, command)), cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: train {' '.join(options)} failed:\n{done.stdout}{done.stderr}")


def run(checkout: Path, folder: Path, task: str, place: str, seed: int, *, resume: bool = False) -> dict:
    """Return the scores, the last loss and the names of the files of one run."""
    out = folder / f"{checkout.name}-{task}-{place.replace(' ', '-')}-{seed}-{resume}"
    common = ["--task", task, "--dataset", f"synthetic-{DATASETS[task]}", *SMALL, *PLACES[place], "--seed", str(seed)]
    if resume:
        train(checkout, out, *common, "--epochs", "1")
        train(checkout, out, "--resume", "--epochs", str(EPOCHS))
    else:
        train(checkout, out, *common, "--epochs", str(EPOCHS))
    result = json.loads((out / "result.json").read_text())
    files = sorted(str(path.relative_to(out)) for path in out.iterdir())
    shutil.rmtree(out)
    return {"test": result["test_score"], "loss": result["epochs"][-1]["loss"], "files": files}


def row(checkouts: tuple[Path, Path], folder: Path, task: str, place: str) -> tuple[list[str], bool]:
    """Return one row of the table, and whether all differences are within the noise."""
    found = [[run(checkout, folder, task, place, seed) for seed in SEEDS] for checkout in checkouts]
    cells, fine = [task, place], True
    for key in ("test", "loss"):
        old, new = ([each[key] for each in runs] for runs in found)
        noise = max(SMALLEST, statistics.stdev(old), statistics.stdev(new))
        difference = statistics.mean(new) - statistics.mean(old)
        fine &= abs(difference) <= SIGMAS * noise
        cells.append(f"{statistics.mean(old):.4f} | {statistics.mean(new):.4f} | {difference / noise:+.1f}")
    resumed = [run(checkout, folder, task, place, 0, resume=True)["loss"] for checkout in checkouts]
    cells += [f"{loss - runs[0]['loss']:+.4f}" for loss, runs in zip(resumed, found, strict=True)]
    old_files, new_files = (set(runs[0]["files"]) for runs in found)
    changed = [f"-{name}" for name in sorted(old_files - new_files)] + [f"+{name}" for name in new_files - old_files]
    return [*cells, " ".join(changed) or "equal"], fine


def main(old: str, new: str = ".") -> None:
    """Print the table as Markdown, one row after the other. Exit with 1 if a difference is larger than the noise."""
    checkouts, fine = (Path(old).resolve(), Path(new).resolve()), True
    print("| task | place | test: old | new | σ | loss: old | new | σ | resumed: old | new | files |")
    print("|" + "---|" * 11)
    with tempfile.TemporaryDirectory() as folder:
        for task in DATASETS:
            for place in PLACES:
                cells, good = row(checkouts, Path(folder), task, place)
                fine &= good
                print("|", " | ".join(cells), "|", flush=True)
    sys.exit(not fine)


if __name__ == "__main__":
    main(*sys.argv[1:])
