"""Checks that would have prevented a failure later, each with its remedy: of this computer, and of machines.

    software.py   Python, packages, libraries: what ``import dgl`` needs
    host.py       limits, /dev/shm, ports, names, ssh, namespaces
    machines.py   the preflight of a job, run on emulated or real machines

In a notebook: ``from tutorial_lib.tools.doctor import examine`` and then ``examine()`` as the last line of a cell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding, Findings, report
from tutorial_lib.cluster.spec import read_ip_config
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import RealMachines
from tutorial_lib.tools.doctor import host, software
from tutorial_lib.tools.doctor.machines import examine_emulated, examine_real

__all__ = ["Finding", "Findings", "examine", "report"]

SOFTWARE = [
    software.python,
    software.packages,
    software.stack,
    software.graphbolt,
    software.datapipes,
    software.undeclared,
    software.variables,
    software.gpus,
]
HOST = [host.open_files, host.shared_memory, host.segments, host.ports, host.host_name, host.ssh_client]
OWN_ON_EMULATED = {"/dev/shm", "leftovers"}  # an emulated machine has its own


def examine(
    *,
    emulate: int | None = None,
    ip_config: str | Path | None = None,
    part_config: str | Path | None = None,
    ssh_port: int | None = None,
    ssh_username: str | None = None,
    remote_python: str = sys.executable,
    allow_public: bool = False,
    quick: bool = False,
) -> Findings:
    """Check this computer and, if asked, the machines of a job. Starts no job, and nothing stays running.

    Args:
        emulate: also start this many emulated machines, run the preflight of a job on each, and stop them.
        ip_config: also run the preflight on the machines of this file, over ssh.
        part_config: DGL's partition description; each machine then checks its part. The path is that on the machines.
        ssh_port, ssh_username: None leaves them to the user's ssh configuration.
        remote_python: interpreter on the machines of ``ip_config``, with tutorial_lib.
        allow_public: accept addresses in ``ip_config`` that anybody may reach.
        quick: leave out the trial ``import dgl``, which takes some seconds.

    Raises:
        InputError: ``emulate`` and ``ip_config`` together, or an address file that cannot be read.
    """
    if emulate is not None and ip_config is not None:
        raise InputError("choose one of --emulate N and --ip_config FILE")
    if ip_config is not None:
        read_ip_config(Path(ip_config))  # a wrong argument is told at once
    findings = Findings()
    for check in SOFTWARE:
        findings += _made(check)
    if quick:
        findings.append(Finding("import dgl", SKIP, "not tried (quick)"))
    else:
        findings += _made(software.import_dgl)
    here = [finding for check in HOST for finding in _made(check)]
    if emulate is not None:
        machines = examine_emulated(emulate, part_config)
    elif ip_config is not None:
        real = RealMachines(Path(ip_config), ssh_port, ssh_username, remote_python, allow_public=allow_public)
        machines = examine_real(real, part_config)
    else:
        machines = [*_made(host.namespaces), *_without_machines(part_config)]
    works = any(f.check == "emulated machines" and f.status == OK for f in machines)
    return Findings([*findings, *(_only_here(f) if works else f for f in here), *machines])


def _made(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check; it is the point of a doctor to work on a computer where things are missing."""
    try:
        return list(check())
    except ModuleNotFoundError as error:
        return [Finding(check.__name__, FAIL, f"{error.name} is not installed", software.REMAKE)]
    except Exception as error:
        return [Finding(check.__name__, SKIP, f"could not be checked: {type(error).__name__}: {error}")]


def _only_here(finding: Finding) -> Finding:
    if finding.status != FAIL or finding.check not in OWN_ON_EMULATED:
        return finding
    detail = f"{finding.detail}; matters for lesson 02 and --machines 1, emulated machines have their own"
    return Finding(finding.check, SKIP, detail)


def _without_machines(part_config: str | Path | None) -> list[Finding]:
    if part_config is None:
        return []
    return [Finding("partition", SKIP, "which machine serves which part is not known; give --emulate or --ip_config")]
