"""``machines``: emulated machines that stay. ``on``: a command on one of them, as with ssh."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Annotated

from cyclopts import App, Parameter

from tutorial_lib.errors import InputError, JobError, to_stderr
from tutorial_lib.launcher.backends import persistent
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.persistent import DEFAULT_NAME, PersistentBackend
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.tools.cli.options import PROGRAM, JsonOption, app

ALL = "all"
machines_app = App(name="machines", help="Emulated machines that stay, for any program: start, use, stop.")
app.command(machines_app)

NUMBER = "NODE_RANK"  # environment variable of commands that `on` runs: the number of the machine
RunningOption = Annotated[
    str | None,
    Parameter(name="--name", help=f"Name of the set. (default: the only running set; of several, {DEFAULT_NAME})"),
]
MachineArgument = Annotated[str, Parameter(help="machine-0, machine-1, ... or all")]
RateArgument = Annotated[str, Parameter(help="1gbit, 200mbit, unshaped")]


@machines_app.command
def start(
    count: Annotated[int, Parameter(help="Number of machines, 1 to 64.")] = 2,
    /,
    *,
    wire: Annotated[str | None, Parameter(help="Bandwidth of each link: 1gbit, 200mbit. (default: no limit)")] = None,
    shm: Annotated[str | None, Parameter(help="Size of each /dev/shm: 2GB. (default: half of the memory)")] = None,
    name: Annotated[str, Parameter(help="Name of the set, if there are several sets.")] = DEFAULT_NAME,
    ttl: Annotated[str, Parameter(help="How long they stay if nobody stops them: 30m, 8h, 2d.")] = "8h",
    ssh: Annotated[bool, Parameter(help="With an ssh server on each; prints the configuration.")] = False,
    own_disks: Annotated[bool, Parameter(help="Each has a private, empty home, /tmp and data.")] = False,
) -> None:
    """Start machines that stay until you stop them, or for --ttl."""
    options = {"wire": wire, "shm": shm, "ttl": ttl, "ssh": ssh, "own_disks": own_disks}
    found = persistent.start(count, name=name, **options)
    option = "" if name == DEFAULT_NAME else f" --name {name}"
    print(f"{count} machines are running: {', '.join(found.machines[:3])}{', ...' if count > 3 else ''}")
    print(f"a command there:  {PROGRAM} on{option} machine-0 hostname    (without a command: a shell)")
    print(f"a job on them:    {PROGRAM} train --on {name}")
    if found.ssh_config:
        print(f"ssh:              ssh -F {found.ssh_config} machine-0")
    print(f"they end at {_clock(found.ends)}, or with:  {PROGRAM} machines stop {name}")


@machines_app.command(name="list")
def list_all(*, as_json: JsonOption = False) -> None:
    """Show the running machines and the jobs that use them."""
    found = []
    for name in persistent.names():
        with contextlib.suppress(InputError, JobError):  # about to come or go
            found.append(persistent.describe(name))
    if as_json:
        print(json.dumps([vars(each) for each in found], indent=2))
    elif not found:
        print(f"no machines are running; start some with: {PROGRAM} machines start 2")
    for each in () if as_json else found:
        times = f"started {_clock(each.started)}, ends {_clock(each.ends)}"
        print(f"{each.name}: {times}, {f'used by {each.job}' if each.job else 'no job'}")
        for machine, address, wire in zip(each.machines, each.addresses, each.wires, strict=True):
            print(f"  {machine:12} {address:16} {'cut' if machine in each.cut else wire or 'no limit'}")


@machines_app.command
def stop(name: Annotated[str | None, Parameter(help="(default: the only ones)")] = None, /) -> None:
    """Switch machines off, with everything that runs on them."""
    running = [name] if name else persistent.names()
    if len(running) != 1:
        raise InputError(f"running are {', '.join(running)}; name one" if running else "no machines are running")
    if job := persistent.describe(running[0]).job:
        to_stderr(f"warning: this ends the job on {running[0]}: {job}")
    persistent.stop(running[0])
    print(f"{running[0]}: switched off")


@machines_app.command
def cut(machine: MachineArgument, /, *, name: RunningOption = None) -> None:
    """Cut a machine's link. All packets are lost, without an error."""
    _change_link("cut", machine, name)


@machines_app.command
def mend(machine: MachineArgument, /, *, name: RunningOption = None) -> None:
    """Undo cut."""
    _change_link("mend", machine, name)


@machines_app.command
def wire(machine: MachineArgument, rate: RateArgument, /, *, name: RunningOption = None) -> None:
    """Change the bandwidth of a machine's link."""
    _change_link("wire", machine, name, rate)


@app.command
def on(
    machine: MachineArgument,
    /,
    *command: Annotated[str, Parameter(help="And its arguments. Without it: a shell.")],
    name: RunningOption = None,
) -> None:
    """Run a command on a machine started with machines start, as ssh would: input, output, signals, exit code.

    The environment variable NODE_RANK is the number of the machine, for example for torchrun --node-rank.
    """
    with PersistentBackend(_running(name), job=False) as cluster:
        if machine == ALL:
            if not command:
                raise InputError("which command? A shell can be opened on one machine only", "Name it: on machine-0")
            sys.exit(_run_on_all(cluster, command))
        target = cluster.machine(machine)
        line = cluster.command(target, list(command) or [os.environ.get("SHELL", "/bin/sh")])
        # This process becomes the command, which uses the caller's terminal and gets its signals.
        os.execve(line[0], line, _environment(cluster, target))


def _running(name: str | None) -> str:
    """Return the given name or that of the only running set. Of several sets, the default one is taken."""
    found = persistent.names()
    if name is None and len(found) > 1 and DEFAULT_NAME not in found:
        raise InputError(f"several sets of machines are running: {', '.join(found)}", f"Choose one: --name {found[0]}")
    return name or (found[0] if len(found) == 1 else DEFAULT_NAME)


def _environment(cluster: EmulatedBackend, machine: Machine) -> dict[str, str]:
    return {**os.environ, NUMBER: str(cluster.machines.index(machine))}


def _run_on_all(cluster: PersistentBackend, command: Sequence[str]) -> int:
    """Run a command on all machines at once, print its lines with their names, and return the first code except 0."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [(m, cluster.popen(m, command, env=_environment(cluster, m), **pipes)) for m in cluster.machines]
    threads = [threading.Thread(target=_copy, args=(m.name, p.stdout)) for m, p in running]
    try:
        for thread in threads:
            thread.start()
        codes = [process.wait() for _machine, process in running]
    finally:
        for _machine, process in running:
            if process.poll() is None:
                process.terminate()
        for thread in threads:
            thread.join()
    code = next((code for code in codes if code), 0)
    return code if code >= 0 else 128 - code  # as a shell reports a signal, for example 137 for SIGKILL


def _copy(machine: str, lines: IO[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(f"[{machine}] ".encode() + line.rstrip(b"\n") + b"\n")
        sys.stdout.buffer.flush()


def _change_link(verb: str, machine: str, name: str | None, rate: str | None = None) -> None:
    with PersistentBackend(_running(name), job=False) as cluster:
        for each in cluster.machines if machine == ALL else [cluster.machine(machine)]:
            cluster.change_link(each, verb, rate)


def _clock(seconds: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(seconds))
