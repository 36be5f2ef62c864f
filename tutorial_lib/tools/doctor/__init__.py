"""Checks that would have prevented a failure later, each with its remedy: of this computer, and of machines.

    software.py   Python, packages, libraries: what ``import dgl`` needs
    host.py       limits, /dev/shm, ports, names, ssh, namespaces

and, without a job, its preflight: on emulated machines, or over ssh on those of an ``ip_config.txt``.

In a notebook: ``from tutorial_lib.tools.doctor import examine`` and then ``examine()`` as the last line of a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding, Findings, report
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.preflight import address_findings, examine_cluster
from tutorial_lib.cluster.preflight_checks import segment_findings
from tutorial_lib.cluster.spec import Cluster, read_ip_config
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.tools.doctor import host, software

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
HOST = [host.open_files, host.shared_memory, segment_findings, host.ports, host.host_name, host.ssh_client]
NEEDS_A_JOB = {"command", "log folder", "ip_config"}  # without one, each machine would say three times: skipped
SSH_SECONDS = 60.0
OWN_ON_EMULATED = {"/dev/shm", "leftovers"}  # an emulated machine has its own


def examine(
    *,
    emulate: int | None = None,
    ip_config: str | Path | None = None,
    part_config: str | Path | None = None,
    real: RealMachines | None = None,
    quick: bool = False,
) -> Findings:
    """Check this computer and, if asked, the machines of a job. Starts no job, and nothing stays running.

    Args:
        emulate: also start this many emulated machines, run the preflight of a job on each, and stop them.
        ip_config: also run the preflight on the machines of this file, over ssh.
        part_config: DGL's partition description; each machine then checks its part. The path is that on the machines.
        real: as ``ip_config``, with what else there is to know about reaching them.
        quick: leave out the trial ``import dgl``, which takes some seconds.

    Raises:
        InputError: ``emulate`` and ``ip_config`` together, or an address file that cannot be read.
    """
    real = RealMachines(Path(ip_config)) if ip_config is not None else real
    if emulate is not None and real is not None:
        raise InputError("choose one of --emulate N and --ip_config FILE")
    if real is not None:
        read_ip_config(real.ip_config)  # a wrong argument is told at once
    found = [finding for check in SOFTWARE for finding in _made(check)]
    found += [Finding("import dgl", SKIP, "not tried (quick)")] if quick else _made(software.import_dgl)
    here = [finding for check in HOST for finding in _made(check)]
    if emulate is not None:
        machines = examine_emulated(emulate, part_config)
    elif real is not None:
        machines = examine_real(real, part_config)
    else:
        machines = [Finding("emulated machines", SKIP, "not asked for (--emulate N tries it)")]
        if part_config is not None:
            detail = "which machine serves which part is not known; give --emulate or --ip_config"
            machines.append(Finding("partition", SKIP, detail))
    works = any(f.check == "emulated machines" and f.status == OK for f in machines)
    return Findings([*found, *(_only_here(f) if works else f for f in here), *machines])


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


def examine_emulated(count: int, part_config: str | Path | None = None) -> list[Finding]:
    """Start so many machines, let each look at itself, and stop them."""
    try:
        with EmulatedCluster(count) as cluster:
            found = preflight_of(cluster, part_config)
    except EmulationUnavailable as error:
        return [Finding("emulated machines", FAIL, error.message, error.remedy)]
    return [Finding("emulated machines", OK, f"{count} started and stopped"), *found]


def examine_real(real: RealMachines, part_config: str | Path | None = None) -> list[Finding]:
    """Look at machines over ssh; a public address is not contacted unless that is allowed.

    Raises:
        InputError: the address file cannot be read as one.
    """
    findings = address_findings(read_ip_config(real.ip_config), allow_public=real.allow_public)
    if any(finding.status == FAIL for finding in findings):
        return [*findings, Finding("machines", SKIP, "not contacted, as an address is not private")]
    try:
        with Layout(emulate=None, real=real).cluster() as cluster:
            reached = Finding("ssh login", OK, f"{', '.join(machine.name for machine in cluster.machines)} answered")
            return [*findings, reached, *preflight_of(cluster, part_config, SSH_SECONDS)]
    except InputError as error:
        return [*findings, Finding("ssh login", FAIL, error.message, error.remedy)]


def preflight_of(cluster: Cluster, part_config: str | Path | None, timeout: float = 30.0) -> list[Finding]:
    """What the machines of an entered cluster say to a plan that starts nothing."""
    config = str(Path(part_config).absolute()) if part_config is not None else ""
    plan = JobPlan(cluster.machines, [], config, ip_config="", log_dir="", cwd="", master_port=cluster.master_port)
    findings = examine_cluster(cluster, plan, timeout=timeout)
    return [f for f in findings if not (f.check in NEEDS_A_JOB and f.status == SKIP)]
