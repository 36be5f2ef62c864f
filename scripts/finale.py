"""Run the whole process on emulated machines with private disks: my_finale.py (lesson 12), then the command finale.

    python scripts/finale.py [--dataset NAME] [--scale 0.05] [--epochs 10] [--yes] [--out FOLDER]

The script first prints the needs of a run, and asks before a large one. During the training of my_finale.py, it
switches off a machine, so that a spare machine continues. Each run writes a report.html to its folder.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.backends.persistent import describe_machines
from tutorial_lib.tools.jobs import confirm_large_run
from tutorial_lib.trainer.config import TrainConfig

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
COMMAND = [sys.executable, "-m", "tutorial_lib"]
TRAINING = "--fanouts 5,10,15 --hidden 128 --batch_size 512 --lr 0.003"  # DGL lists the fan-out of the seeds last


def train_with_my_finale(name: str, source: DataSource, epochs: int, out: Path) -> None:
    """Run my_finale.py on machines that are running, switch off machine-1 after the first epoch, and keep the results.

    Args:
        name: the machines, two for the job and a spare one.
    """
    state = describe_machines(name)
    folder = Path(tempfile.mkdtemp(prefix="finale-", dir="/tmp"))  # /tmp is private on each machine
    addresses = dict(zip(state.machines, state.addresses, strict=True))
    plan = {"folder": str(folder), "dataset": source.name, "scale": source.scale, "seconds": 24 * 3600}
    plan |= {"machines": {each: addresses[each] for each in state.machines[:2]}}
    plan |= {"spares": {each: addresses[each] for each in state.machines[2:]}}
    plan |= {"options": f"{TRAINING} --num_epochs {epochs}"}
    plan["shell"] = plan["job_shell"] = f"{sys.executable} -m tutorial_lib on --name {name} {{}} sh -c"
    (folder / "plan.json").write_text(json.dumps(plan))
    log = folder / "logs" / state.machines[0] / "trainer-0.log"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the job runs python3
    command = [sys.executable, str(NOTEBOOKS / "scripts" / "my_finale.py"), str(folder / "plan.json")]
    running = subprocess.Popen(command, env={**os.environ, "PATH": path})
    try:
        while running.poll() is None and not (log.exists() and "epoch 0 " in log.read_text()):
            time.sleep(0.1)
        if running.poll() is None:
            print(f"  switching off {state.machines[1]}", flush=True)
            os.kill(state.pids[state.machines[1]], signal.SIGKILL)
        if running.wait() != 0:
            sys.exit(f"error: my_finale.py failed. Read the logs of the processes in {out}/logs.")
    finally:
        running.terminate()
        running.wait()
        shutil.copytree(folder, out, ignore=shutil.ignore_patterns("parts", "*.py"))
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="synthetic-products")
    parser.add_argument("--scale", type=float, default=0.05, help="size of a generated data set")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--yes", action="store_true", help="start a large run without asking")
    parser.add_argument("--out", type=Path, default=Path("runs", time.strftime("%Y%m%d-%H%M%S-finale")))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # "finally" runs
    if options.out.exists():
        sys.exit(f"error: {options.out} already exists\nChoose another folder: make finale OUT=FOLDER")
    source = DataSource(options.dataset, scale=options.scale)
    print("This trains twice on two emulated machines, which share the memory and the cores of this computer. Estimate")
    print("for the command finale (my_finale.py needs up to ten times as long, for an exact evaluation of each epoch):")
    try:
        confirm_large_run(
            source, Layout(emulate=2).make_backend(), 1, TrainConfig(epochs=options.epochs), yes=options.yes
        )
    except InputError as error:
        sys.exit(f"error: {error.message}\n{error.remedy}")
    name = f"finale-{os.getpid()}"
    machines = ["3", "--name", name, "--own-disks", "--wire", "1gbit", "--ttl", "2d"]
    subprocess.run([*COMMAND, "machines", "start", *machines], check=True, stdout=subprocess.DEVNULL)
    try:
        train_with_my_finale(name, source, options.epochs, options.out / "my_finale")
    finally:
        subprocess.run([*COMMAND, "machines", "stop", name], check=True)
    words = ["--dataset", source.name, "--scale", str(source.scale), "--epochs", str(options.epochs), "--yes"]
    words += ["--emulate", "2", "--own-disks", "--wire", "1gbit", "--out", str(options.out / "finale")]
    subprocess.run([*COMMAND, "finale", *words], check=True)
    for run in ("my_finale", "finale"):
        command = [sys.executable, "-m", "support.finale_report", str(options.out / run)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(NOTEBOOKS)})


if __name__ == "__main__":
    main()
