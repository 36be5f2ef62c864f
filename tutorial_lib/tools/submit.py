"""``submit`` writes a script for Slurm or a manifest for Kubernetes that runs a command, and can start it."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated

from tutorial_lib.data import DATASET_NAMES, DEFAULT_SCALE, check_dataset_arguments
from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject, parse_memory, parse_time_limit
from tutorial_lib.job.folder import default_run_folder
from tutorial_lib.tools.options import MACHINE_OPTIONS, about, app, parse


@app.command
def submit(
    command: Annotated[list[str], about("train, finale or launch, with its options.")],
    /,
    *,
    nodes: Annotated[int, about("Number of nodes. Node k serves part k.")] = 2,
    cpus: Annotated[int | None, about("CPUs of each node. (default: set by Slurm; pod: 4)")] = None,
    gpus: Annotated[int, about("GPUs of each node. Each GPU gets one trainer.", name="--gpus-per-node")] = 0,
    time: Annotated[str, about("Time limit: 30 (minutes), 4:00:00 or 1-12 (days and hours).")] = "1:00:00",
    mem: Annotated[str | None, about("Memory of each node, such as 32G. (default: set by Slurm; pod: 16G)")] = None,
    partition: Annotated[str | None, about("Slurm partition. (default: set by Slurm)")] = None,
    account: Annotated[str | None, about("Slurm account.")] = None,
    kubernetes: Annotated[bool, about("Write a manifest for Kubernetes.")] = False,
    image: Annotated[str | None, about("Image for Kubernetes, made with the Dockerfile.")] = None,
    claim: Annotated[str, about("Kubernetes volume that all pods mount at /data.")] = "data",
    shm: Annotated[str | None, about("Size of /dev/shm in Kubernetes. (default: half of --mem)")] = None,
    name: Annotated[str, about("Name of the job.")] = "dgl",
    out: Annotated[Path | None, about("Run folder. (default: a new one below runs/)")] = None,
    script: Annotated[Path | None, about("File to write. (default: job.sh or job.yaml)")] = None,
    go: Annotated[bool, about("Call sbatch or kubectl immediately.")] = False,
) -> None:
    """Write a script for Slurm's sbatch, or a manifest for Kubernetes, that runs a command on a cluster."""
    kind, *words = command
    if kind not in ("train", "finale", "launch"):
        raise InputError(f"submit {kind}: only train, finale or launch can run", "submit --nodes 4 train --epochs 20")
    options = parse(command)[2]  # wrong options are reported here, not on the nodes
    check_options(kind, options, pods=kubernetes)
    added = ["--yes"] if kind == "finale" else []
    if gpus:
        added += [f"--num_trainers={gpus}"] if kind == "launch" else ["--device=cuda", f"--trainers={gpus}"]
    words = [*(word for word in added if word[2:].partition("=")[0] not in options), *words]
    script = script or Path("job.yaml" if kubernetes else "job.sh")
    job = {"kind": kind, "words": words, "nodes": nodes, "gpus": gpus, "name": name, "path": script}
    if kubernetes:
        if image is None:
            raise InputError("--kubernetes needs --image", "Make one with the Dockerfile, and push it to a registry.")
        pod = {"image": image, "claim": claim, "cpus": str(cpus or 4), "out": str(out or default_run_folder(name))}
        text = render("job.yaml.j2", {**job, **pod, **kubernetes_fields(name, mem or "16G", shm, time, options)})
    else:
        batch = {"cpus": cpus, "time": time, "mem": mem and mem.rstrip("iB"), "partition": partition}
        folders = {"out": out, "folder": os.getcwd(), "python": sys.executable}
        text = render("job.sh.j2", {**job, **batch, "account": account, **folders})
        Path("runs").mkdir(exist_ok=True)  # Slurm does not make the folder of its log
    with open(script, "x", opener=partial(os.open, mode=0o600 if kubernetes else 0o644)) as file:
        file.write(text)  # a manifest contains a private key
    start_command = ["kubectl", "apply", "-f", str(script)] if kubernetes else ["sbatch", str(script)]
    if go:
        sys.exit(subprocess.run(start_command).returncode)
    print(f"wrote {script}. Start it with: {shlex.join(start_command)}")


def kubernetes_fields(name: str, mem: str, shm: str | None, time: str, options: JsonObject) -> JsonObject:
    """Return the sizes, the time limit, the address file and the ssh keys of the pods, for ``job.yaml.j2``."""
    memory = parse_memory(f"{mem.rstrip('iB')}iB")  # powers of 1024, as in Slurm
    shared = parse_memory(f"{shm.rstrip('iB')}iB") if shm else memory // 2
    return {
        "mem": f"{memory >> 20}Mi",
        "shm": f"{shared >> 20}Mi",
        "seconds": parse_time_limit(time),
        "ip_config": os.path.join(options.get("workspace", ""), options.get("ip_config", "ip_config.txt")),
        "keys": make_keys(name),
    }


def render(name: str, fields: JsonObject) -> str:
    """Return a template of this folder with its fields. The templates quote texts for the shell or for YAML."""
    from jinja2 import StrictUndefined, Template  # most commands need no templates

    source = Path(__file__).with_name(name).read_text()
    make_template = partial(Template, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    functions = {"json": partial(json.dumps, ensure_ascii=False), "quote": shlex.quote, "join": shlex.join}
    return make_template(source, undefined=StrictUndefined).render({**fields, **functions})


def check_options(kind: str, options: JsonObject, *, pods: bool) -> None:
    """Check that a script can run a command, that the data set exists, and that pods find each path at /data."""
    set_by_script = {*MACHINE_OPTIONS, "out", "resume", "ssh_config"}
    if kind == "launch":  # the script of the user reads this file
        set_by_script.remove("ip_config")
    if clash := options.keys() & set_by_script:
        raise InputError(f"--{min(clash)} is not for submit", "Remove it. For the run folder: submit --out FOLDER ...")
    name = options.get("dataset", DATASET_NAMES[0])
    paths = {key: value for key, value in options.items() if pods and isinstance(value, Path)}
    if pods and name not in DATASET_NAMES and ("/" in name or not get_close_matches(name, DATASET_NAMES, 1, 0.8)):
        paths["dataset"] = Path(name)
    else:
        check_dataset_arguments(name, options.get("scale", DEFAULT_SCALE), options.get("seed", 0))
    for key, path in paths.items():
        if not f"{os.path.normpath(Path('/data', path.expanduser()))}/".startswith("/data/"):
            remedy = f"Copy it to the volume (docs/kubernetes.md), then give --{key} /data/{path.name}"
            raise InputError(f"--{key} {path}: the pods cannot read files of this computer", remedy)


def make_keys(name: str) -> dict[str, str]:
    """Return a new pair of ssh keys for the pods of a job."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", f"{folder}/key"]
        subprocess.run(["ssh-keygen", *options], check=True, stdin=subprocess.DEVNULL, timeout=60)
        return {file: Path(folder, file).read_text() for file in ("key", "key.pub")}
