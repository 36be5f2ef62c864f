"""``submit`` writes a script for Slurm or a manifest for Kubernetes, and can start it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from tutorial_lib.errors import InputError
from tutorial_lib.job.folder import default_run_folder
from tutorial_lib.tools import submit as scripts
from tutorial_lib.tools.cli.options import app, parse, values_of

AT_LEAST_ONE = Parameter(validator=Number(gte=1))


@app.command
def submit(
    command: Annotated[list[str], Parameter(help="train, finale or launch, with its options.")],
    /,
    *,
    nodes: Annotated[int, AT_LEAST_ONE, Parameter(help="Machines of the job; node k serves part k.")] = 2,
    cpus: Annotated[int | None, AT_LEAST_ONE, Parameter(help="CPUs of each node. (default: any; of a pod 4)")] = None,
    gpus: Annotated[
        int,
        Parameter(name="--gpus-per-node", help="GPUs of each node, with a trainer on each.", validator=Number(gte=0)),
    ] = 0,
    time: Annotated[str, Parameter(help="Longest time, as Slurm writes it: 30, 4:00:00, 1-12.")] = "1:00:00",
    mem: Annotated[
        str | None, Parameter(help="Memory of each node: 32G. (default: the partition's; of a pod: 16Gi)")
    ] = None,
    partition: Annotated[str | None, Parameter(help="Partition of the cluster. (default: its default)")] = None,
    account: Annotated[str | None, Parameter(help="Account of the cluster.")] = None,
    kubernetes: Annotated[bool, Parameter(help="Write a manifest for Kubernetes.")] = False,
    image: Annotated[str | None, Parameter(help="Image for Kubernetes, made with the Dockerfile.")] = None,
    claim: Annotated[str, Parameter(help="Volume of Kubernetes at /data that all pods share.")] = "data",
    shm: Annotated[str | None, Parameter(help="Size of /dev/shm in Kubernetes. (default: half of --mem)")] = None,
    env: Annotated[
        list[str] | None, Parameter(help="NAME=VALUE for every process in Kubernetes. Can be repeated.")
    ] = None,
    name: Annotated[str, Parameter(help="Name of the job.")] = "dgl",
    out: Annotated[Path | None, Parameter(help="Run folder. (default: a new one below runs/)")] = None,
    script: Annotated[Path | None, Parameter(help="File to write. (default: job.sh, job.yaml)")] = None,
    go: Annotated[bool, Parameter(help="Call sbatch or kubectl at once.")] = False,
) -> None:
    """Write the script for Slurm's sbatch, or a manifest for Kubernetes, that runs a command on a cluster."""
    kind, *words = scripts.complete_command(command, gpus)
    _, arguments, _ = parse([kind, *words])  # wrong options are reported here, not on the nodes
    options = values_of(arguments)
    scripts.check_paths(options, claim if kubernetes else None)
    script = script or Path("job.yaml" if kubernetes else "job.sh")
    if not str(script).isprintable():  # a comment in the script contains this name
        raise InputError(f"--script {str(script)!r}: a name without line breaks and control characters")
    if script.exists():
        raise InputError(f"--script {script} exists", "Name another file, or remove it.")
    foreign = {"--partition": partition, "--account": account}
    foreign = foreign if kubernetes else {"--image": image, "--shm": shm, "--env": env}
    if given := [option for option, value in foreign.items() if value]:
        raise InputError(f"{given[0]} is for {'Slurm' if kubernetes else 'Kubernetes'}")
    if kubernetes:
        if image is None:
            raise InputError("--kubernetes needs --image", "Make one with the Dockerfile, and push it to a registry.")
        fields = {"name": name, "time": time, "mem": mem or "16Gi", "shm": shm, "env": env or [], "image": image}
        fields |= {"claim": claim, "cpus": str(cpus or 4), "gpus": gpus, "out": str(out or default_run_folder(name))}
        if kind == "launch":
            fields["ip_config"] = str(Path(options.get("workspace") or "", options.get("ip_config") or "ip_config.txt"))
        text = scripts.render_manifest(kind, *words, path=script, nodes=nodes, **fields)
    else:
        asked = {"job-name": name, "cpus-per-task": cpus, "gpus-per-node": gpus or None, "time": time}
        asked |= {"mem": mem and mem.rstrip("iB"), "partition": partition, "account": account}
        text = scripts.render_script(kind, *words, path=script, nodes=nodes, out=out, asked=asked)
        Path("runs").mkdir(exist_ok=True)  # Slurm does not make the folder of its log
    # A manifest contains a private key.
    with os.fdopen(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if kubernetes else 0o644), "w") as file:
        file.write(text)
    start = ["kubectl", "apply", "-f", str(script)] if kubernetes else ["sbatch", str(script)]
    if not go:
        print(f"{script} is written. To start it: {shlex.join(start)}")
    elif shutil.which(start[0]) is None:
        raise InputError(f"--go: there is no {start[0]} here", f"Copy {script} to a computer of your cluster.")
    else:
        sys.exit(subprocess.run(start).returncode)
