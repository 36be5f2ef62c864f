"""``submit`` writes a batch script for Slurm or a manifest for Kubernetes that runs one of our commands.

``agent --from-env`` is what such a manifest has each pod run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from tutorial_lib.data import DEFAULT_SCALE, NAMES, check_arguments
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import rendered
from tutorial_lib.job.folder import default_run_folder
from tutorial_lib.tools.cli.options import app, parse, values_of

KINDS = ("train", "finale", "launch")
FIXED = {"--slurm", "--out", "--resume", "--emulate", "--on", "--machines", "--ssh_config"}
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
    kind, *rest = command
    if kind not in KINDS:
        raise InputError(f"submit {kind}: it runs {', '.join(KINDS)}", "submit --nodes 4 train --epochs 20")
    fixed = FIXED if kind == "launch" else FIXED | {"--ip_config"}
    if taken := [word for word in rest if word.split("=")[0] in fixed]:
        raise InputError(f"submit: {taken[0]} is what the script says", "The run folder: submit --out FOLDER ...")
    of_gpus = {"--num_trainers": str(gpus)} if kind == "launch" else {"--device": "cuda", "--trainers": str(gpus)}
    given = {word.split("=")[0] for word in rest}
    rest = [*(word for pair in of_gpus.items() if gpus and pair[0] not in given for word in pair), *rest]
    if kind == "finale" and "--yes" not in given:
        rest = ["--yes", *rest]  # nobody is there to be asked
    # Wrong options are reported here, not on the nodes.
    _, arguments, _ = parse([kind, *rest])
    check_files(values_of(arguments), claim if kubernetes else None)
    script = script or Path("job.yaml" if kubernetes else "job.sh")
    if not str(script).isprintable():  # its name is in a comment of the script
        raise InputError(f"--script {str(script)!r}: a name without line breaks and control characters")
    if script.exists():
        raise InputError(f"--script {script} exists", "Name another file, or remove it.")
    others = {"--partition": partition, "--account": account}
    others = others if kubernetes else {"--image": image, "--shm": shm, "--env": env}
    if foreign := [word for word, value in others.items() if value]:
        raise InputError(f"{foreign[0]} is for {'Slurm' if kubernetes else 'Kubernetes'}")
    for word, text in {"--name": name, "--partition": partition, "--account": account}.items():
        if text is not None and not re.fullmatch(r"[\w.,@+-]+", text):
            raise InputError(f"{word} {text!r}: letters, digits and dashes only")
    for size in filter(None, (mem, shm)):
        kibibytes_of(size)
    seconds = seconds_of(time)
    fields: dict[str, Any] = {"nodes": nodes, "name": name, "path": script}
    if kubernetes:
        if image is None:
            raise InputError("--kubernetes needs --image", "Make one with the Dockerfile, and push it to a registry.")
        if wrong := [pair for pair in env or [] if not re.fullmatch(r"[A-Za-z_]\w*=.*", pair)]:
            raise InputError(f"--env: {wrong[0]!r} is not NAME=VALUE on one line")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", claim):
            raise InputError(f"--claim {claim}: Kubernetes takes small letters, digits, dots and dashes")
        fields |= {"command": [kind, *rest], "env": dict(pair.split("=", 1) for pair in env or [])}
        fields |= {"image": image, "claim": claim, "cpus": str(cpus or 4), "gpus": gpus, "seconds": seconds}
        text = manifest({**fields, "out": str(out or default_run_folder(name))}, mem or "16Gi", shm)
    else:
        asked = {"cpus-per-task": cpus, "gpus-per-node": gpus or None, "time": time, "mem": mem and mem.rstrip("iB")}
        fields |= {"kind": kind, "asked": asked | {"partition": partition, "account": account}}
        fields |= {"python": shlex.quote(sys.executable), "options": shlex.join(rest)}
        folder, run = shlex.quote(str(Path.cwd())), shlex.quote(str(out)) if out else '"runs/$SLURM_JOB_ID"'
        text = rendered("tools/cli/job.sh.j2", **fields, folder=folder, out=run)
        Path("runs").mkdir(exist_ok=True)  # Slurm makes no folder for its log
    # The manifest has keys in it.
    with os.fdopen(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if kubernetes else 0o644), "w") as file:
        file.write(text)
    start = ["kubectl", "apply", "-f", str(script)] if kubernetes else ["sbatch", str(script)]
    if not go:
        print(f"{script} is written. To start it: {shlex.join(start)}")
    elif shutil.which(start[0]) is None:
        raise InputError(f"--go: there is no {start[0]} here", f"Copy {script} to where your cluster can be reached.")
    else:
        sys.exit(subprocess.run(start).returncode)


def check_files(options: dict[str, Any], claim: str | None) -> None:
    """Raise an InputError for an unknown data set, and warn of paths that the pods of Kubernetes do not have.

    Args:
        options: of the command, by name.
        claim: the volume that pods have at /data, or None for Slurm, whose nodes have the files of this computer.
    """
    name = options.get("dataset")
    known = name in NAMES or claim is None
    if name and (known or ("/" not in name and get_close_matches(name, NAMES, 1, 0.8))):
        check_arguments(name, options.get("scale") or DEFAULT_SCALE, options.get("seed", 0))
    paths = {key: value for key, value in options.items() if claim and isinstance(value, Path) and value != Path()}
    for key, path in {**paths, **({} if known or not name else {"dataset": Path(name)})}.items():
        if "data" not in path.absolute().parts[1:2] and (path.is_absolute() or path.expanduser().exists()):
            volume = f"The pods read it below /data, from the volume {claim!r}: docs/kubernetes.md"
            print(f"warning: --{key} {path} is a path of this computer. {volume}", file=sys.stderr)


def manifest(fields: dict[str, Any], mem: str, shm: str | None) -> str:
    """The manifest of an Indexed Job, its Service, NetworkPolicy, ConfigMap and Secret; the fields of the template."""
    from tutorial_lib.cluster.pods import new_keys

    whole = kibibytes_of(mem)
    shared = kibibytes_of(shm) if shm else whole // 2
    if shared >= whole:
        raise InputError(f"--shm {shm}: it is a part of the pod's memory, which is {mem} (--mem)")
    sizes = {"mem": _size(whole), "shm": _size(shared)}
    text = partial(json.dumps, ensure_ascii=False)
    return rendered("tools/cli/job.yaml.j2", **fields, **sizes, keys=new_keys(fields["name"]), json=text)


def kibibytes_of(size: str) -> int:
    """``32G``, ``32Gi`` and ``32GB`` to 33,554,432: powers of 1024, as Slurm takes them."""
    found = re.fullmatch(r"(\d+)([KMGT])i?B?", size)
    if found is None:
        raise InputError(f"--mem and --shm take sizes like 32G, not {size}")
    return int(found[1]) << 10 * "KMGT".index(found[2])


def _size(kibibytes: int) -> str:
    """``33554432`` to ``32Gi``, as Kubernetes writes it."""
    unit = next(k for k in (3, 2, 1, 0) if kibibytes % (1 << 10 * k) == 0)
    return f"{kibibytes >> 10 * unit}{'KMGT'[unit]}i"


def seconds_of(time: str) -> int:
    """Of a time as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        raise InputError(f"--time {time}: write it like 30, 4:00:00 or 1-12")
    days, *numbers = found.groups()
    a, b, c = (int(number or 0) for number in numbers)
    if days is not None or numbers[2] is not None:  # hours first
        seconds = 86400 * int(days or 0) + 3600 * a + 60 * b + c
    else:
        seconds = 60 * a + b
    if seconds == 0:
        raise InputError(f"--time {time}: a job needs some time")
    return seconds


@app.command(show=False)
def agent(*, from_env: Annotated[bool, Parameter(help="What the variables of a pod say.")] = False) -> None:
    """What each pod of submit --kubernetes runs."""
    from tutorial_lib.cluster.pods import Pod, run

    if not from_env:
        raise InputError("agent: it needs --from-env, in a pod that submit --kubernetes describes")
    sys.exit(run(Pod.from_env(os.environ)))
