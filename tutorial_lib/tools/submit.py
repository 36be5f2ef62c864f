"""Batch scripts for Slurm and manifests for Kubernetes that run ``train``, ``finale`` or ``launch``."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from tutorial_lib.data import DEFAULT_SCALE, NAMES, check_arguments
from tutorial_lib.errors import InputError
from tutorial_lib.tools.templates import render_template

KINDS = ("train", "finale", "launch")
SET_BY_SCRIPT = {"--slurm", "--out", "--resume", "--emulate", "--on", "--machines", "--ssh_config"}


def complete_command(command: Sequence[str], gpus: int) -> list[str]:
    """Check the words of a command and add the options for GPUs and for a run without a terminal."""
    kind, *words = command
    if kind not in KINDS:
        raise InputError(f"submit {kind}: it runs {', '.join(KINDS)}", "submit --nodes 4 train --epochs 20")
    given = {word.partition("=")[0] for word in words}
    if taken := given & (SET_BY_SCRIPT if kind == "launch" else {*SET_BY_SCRIPT, "--ip_config"}):
        raise InputError(f"submit: the script sets {min(taken)}", "To choose the run folder: submit --out FOLDER ...")
    added = ["--yes"] if kind == "finale" else []
    if gpus:
        added += [f"--num_trainers={gpus}"] if kind == "launch" else ["--device=cuda", f"--trainers={gpus}"]
    return [kind, *(word for word in added if word.partition("=")[0] not in given), *words]


def check_paths(options: Mapping[str, Any], claim: str | None) -> None:
    """Check that the data set exists and, for pods with the volume ``claim`` at /data, that no path leads elsewhere."""
    paths = {key: value for key, value in options.items() if claim and isinstance(value, Path)}
    name = options.get("dataset")
    if name and claim and name not in NAMES and ("/" in name or not get_close_matches(name, NAMES, 1, 0.8)):
        paths["dataset"] = Path(name)
    elif name:
        check_arguments(name, options.get("scale") or DEFAULT_SCALE, options.get("seed", 0))
    for key, path in paths.items():
        there = os.path.normpath(Path("/data", path.expanduser()))
        if not f"{there}/".startswith("/data/"):
            remedy = f"Copy it to the volume {claim!r} (docs/kubernetes.md), then give --{key} /data/{path.name}"
            raise InputError(f"--{key} {path}: the pods have no files of this computer", remedy)


def render_script(kind: str, *options: str, out: Path | None, asked: Mapping[str, Any], **fields: Any) -> str:
    """Return the script for ``sbatch``; ``asked`` has its options by name."""
    for name in ("job-name", "partition", "account"):
        if asked[name] and not re.fullmatch(r"[\w.,@+-]+", asked[name]):
            raise InputError(f"--{name.removeprefix('job-')} {asked[name]!r}: letters, digits and dashes only")
    seconds_of(asked["time"])
    if asked["mem"]:
        mebibytes_of(asked["mem"])
    fields |= {"folder": shlex.quote(str(Path.cwd())), "out": shlex.quote(str(out)) if out else '"runs/$SLURM_JOB_ID"'}
    fields |= {"python": shlex.quote(sys.executable), "options": shlex.join(options)}
    return render_template("tools/cli/job.sh.j2", kind=kind, asked=asked, **fields)


def render_manifest(*command: str, name: str, time: str, mem: str, shm: str | None, env: list[str], **more: Any) -> str:
    """Return the manifest of an Indexed Job with its Service, NetworkPolicy, ConfigMap and Secret."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", name):
        raise InputError(f"--name {name}: Kubernetes takes small letters, digits and dashes, at most 42")
    if wrong := [pair for pair in env if not re.fullmatch(r"[A-Za-z_]\w*=.*", pair)]:
        raise InputError(f"--env: {wrong[0]!r} is not NAME=VALUE on one line")
    memory = mebibytes_of(mem)
    shared = mebibytes_of(shm) if shm else memory // 2
    if shared >= memory:
        raise InputError(f"--shm {shm}: it is a part of the pod's memory, which is {mem} (--mem)")
    fields = {"mem": f"{memory}Mi", "shm": f"{shared}Mi", "seconds": seconds_of(time), **more}
    fields |= {"env": dict(pair.split("=", 1) for pair in env), "keys": make_keys(name)}
    text = partial(json.dumps, ensure_ascii=False)
    return render_template("tools/cli/job.yaml.j2", kind=command[0], command=command, name=name, json=text, **fields)


def make_keys(comment: str) -> dict[str, str]:
    """Return a new pair of ssh keys by file name."""
    if (program := shutil.which("ssh-keygen")) is None:
        raise InputError("no ssh-keygen on this computer", "Install it: sudo apt install openssh-client")
    with tempfile.TemporaryDirectory() as folder:
        words = ["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", f"{folder}/key"]
        subprocess.run([program, *words], check=True, stdin=subprocess.DEVNULL, timeout=60)
        return {file: Path(folder, file).read_text() for file in ("key", "key.pub")}


def mebibytes_of(size: str) -> int:
    """Convert ``32G``, ``32Gi`` or ``32GB`` to 32768, in powers of 1024 as Slurm does."""
    found = re.fullmatch(r"(\d+)([KMGT])i?B?", size)
    if found is None:
        raise InputError(f"--mem and --shm take sizes like 32G, not {size}")
    return (int(found[1]) << 10 * "KMGT".index(found[2])) >> 10


def seconds_of(time: str) -> int:
    """Convert a time of Slurm: minutes, minutes:seconds, hours:minutes:seconds, or days-hours[:minutes[:seconds]]."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", time)
    if found is None or not re.search("[1-9]", time):
        raise InputError(f"--time {time}: write a time such as 30 (minutes), 4:00:00 or 1-12")
    days, numbers = int(found[1] or 0), [int(number) for number in found[2].split(":")]
    if found[1] is None and len(numbers) < 3:
        numbers.insert(0, 0)  # no hours
    return sum(number * unit for number, unit in zip([days, *numbers], (86400, 3600, 60, 1), strict=False))
