"""``machines`` manages persistent emulated machines. ``on`` runs a command on one of them, like ssh."""

import json
import os
from datetime import datetime
from typing import Annotated

from cyclopts import App

from tutorial_lib.errors import print_to_stderr
from tutorial_lib.launcher.backends import persistent
from tutorial_lib.tools.options import PROGRAM, JsonOption, about, app

machines_app = app.command(App(name="machines", help="Start, use and stop persistent emulated machines."))
NameOption = Annotated[str | None, about(f"Name of the set. (default: the only one, or {persistent.DEFAULT_NAME})")]
RateArgument = Annotated[str, about("Bandwidth: 1gbit, 200mbit or unshaped.")]
MachineArgument = Annotated[str, about("Name of a machine, such as machine-0.")]
LinkArgument = Annotated[str, about("Name of a machine, such as machine-0, or all.")]


@machines_app.command
def start(
    count: Annotated[int, about("Number of machines, 1 to 64.")] = 2,
    /,
    *,
    wire: Annotated[str | None, about("Bandwidth of each machine: 1gbit, 200mbit. (default: no limit)")] = None,
    shm: Annotated[str | None, about("Size of each /dev/shm: 2GB. (default: half of the memory)")] = None,
    name: Annotated[str, about("Name of the set, if there are several sets.")] = persistent.DEFAULT_NAME,
    ttl: Annotated[str, about("Lifetime of the machines, such as 30m, 8h or 2d.")] = "8h",
    ssh: Annotated[bool, about("Let ssh reach the machines, and print the ssh configuration.")] = False,
    own_disks: Annotated[bool, about("Give each machine a private, empty home, /tmp and data folder.")] = False,
) -> None:
    """Start machines that run until you stop them or --ttl expires."""
    state = persistent.start_machines(count, name=name, wire=wire, shm=shm, ttl=ttl, ssh=ssh, own_disks=own_disks)
    option = "" if name == persistent.DEFAULT_NAME else f" --name {name}"
    print(f"{count} machines are running: {', '.join(state.machines[:3])}{', ...' if count > 3 else ''}")
    print(f"run a command:    {PROGRAM} on{option} machine-0 hostname    (without a command: a shell)")
    print(f"run a job:        {PROGRAM} train --on {name}")
    if state.ssh_config:
        print(f"ssh:              ssh -F {state.ssh_config} machine-0")
    print(f"they stop at {datetime.fromtimestamp(state.ends):%a %H:%M}, or with:  {PROGRAM} machines stop {name}")


@machines_app.command(name="list")
def list_all(*, as_json: JsonOption = False) -> None:
    """Show the running machines and the jobs that use them."""
    states = [persistent.describe_machines(name) for name in persistent.running_names()]
    if as_json:
        print(json.dumps(states, indent=2, default=vars))
    elif not states:
        print(f"no machines are running; start some with: {PROGRAM} machines start 2")
    for state in () if as_json else states:
        user = f"used by {state.job}" if state.job else "no job"
        print(f"{state.name}: ends {datetime.fromtimestamp(state.ends):%a %H:%M}, {user}")
        for machine, address, wire, cut in zip(state.machines, state.addresses, state.wires, state.cut, strict=True):
            print(f"  {machine:12} {address:16} {'cut' if cut else wire or 'no limit'}")


@machines_app.command
def stop(name: NameOption = None, /) -> None:
    """Stop machines, with all processes on them."""
    state = persistent.describe_machines(open_running_set(name).name)
    if state.job:
        print_to_stderr(f"warning: this ends the job on {state.name}: {state.job}")
    persistent.stop_machines(state.name)
    print(f"{state.name}: switched off")


@machines_app.command
def cut(machine: LinkArgument, /, *, name: NameOption = None) -> None:
    """Cut the link of a machine. All packets are lost, without an error."""
    change_link("cut", machine, name)


@machines_app.command
def mend(machine: LinkArgument, /, *, name: NameOption = None) -> None:
    """Restore the link of a machine after ``machines cut``."""
    change_link("mend", machine, name)


@machines_app.command
def wire(machine: LinkArgument, rate: RateArgument, /, *, name: NameOption = None) -> None:
    """Change the bandwidth of a machine."""
    change_link("wire", machine, name, rate)


def change_link(verb: str, machine: str, name: str | None, rate: str | None = None) -> None:
    backend = open_running_set(name)
    for target in backend.machines if machine == "all" else [backend.machine(machine)]:
        backend.change_link(target, verb, rate)


def open_running_set(name: str | None) -> persistent.PersistentBackend:
    """Return the machines of the given name, or the only running ones, or those of the default name."""
    names = persistent.running_names()
    return persistent.PersistentBackend(name or (names[0] if len(names) == 1 else persistent.DEFAULT_NAME))


@app.command
def on(
    machine: MachineArgument,
    /,
    *command: Annotated[str, about("The command and its arguments. (default: a shell)")],
    name: NameOption = None,
) -> None:
    """Run a command on a persistent machine, as ssh would, with its input, output, signals and exit code."""
    backend = open_running_set(name)
    folder = os.path.expanduser("~") if backend.private_disk_machines else os.getcwd()
    argv = backend.command(backend.machine(machine), list(command) or [os.environ.get("SHELL", "/bin/sh")], folder)
    os.execv(argv[0], argv)  # this process becomes the command, which uses the caller's terminal and gets its signals
