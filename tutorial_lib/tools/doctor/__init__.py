"""Checks that would have prevented a failure later, each with its remedy: of this computer, and of machines.

    software.py     Python, packages, libraries: what ``import dgl`` needs; ssh, the host name
    cluster/preflight_checks   limits, /dev/shm, ports: as each machine looks at them before a job

and, without a job, its preflight: on emulated machines, or over ssh on those of an ``ip_config.txt``.

In a notebook: ``from tutorial_lib.tools.doctor import examine`` and then ``examine()`` as the last line of a cell.
"""

from __future__ import annotations

from pathlib import Path

from tutorial_lib.cluster.emulated import MASTER_PORT
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Check, Finding, Findings, made, report
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.preflight import address_findings, examine_cluster
from tutorial_lib.cluster.preflight_checks import open_files, port_findings, segment_findings, shared_memory
from tutorial_lib.cluster.spec import Machine, read_ip_config
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.tools.doctor import software

__all__ = ["Finding", "Findings", "examine", "report"]

SOFTWARE: list[Check] = [
    software.python,
    software.packages,
    software.graphbolt,
    software.undeclared,
    software.variables,
    software.gpus,
]
HERE: list[Check] = [open_files, segment_findings, shared_memory, port_findings]  # those of a machine that need no plan
SMALL_JOB = JobPlan([Machine("", "0.0.0.0")], [], "", "", "", "", MASTER_PORT, shm_of_trainers=1 << 30)
PORTS_HERE = "matters only where this computer is in an ip_config.txt; emulated machines have their own ports"
SHM_HERE = "matters for lesson 02 and --machines 1, emulated machines have their own"
EMULATED_SECONDS, SSH_SECONDS = 30.0, 60.0


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
    found = made(SOFTWARE)
    found += [Finding("import dgl", SKIP, "not tried (quick)")] if quick else made([software.import_dgl])
    here = [*made(HERE, SMALL_JOB, 0), *made([software.host_name, software.ssh_client])]
    machines = [Finding("emulated machines", SKIP, "not asked for (--emulate N tries it)")]
    if emulate is not None or real is not None:
        machines = examine_machines(Layout(emulate, real=real), part_config)
    elif part_config is not None:
        detail = "which machine serves which part is not known; give --emulate or --ip_config"
        machines.append(Finding("partition", SKIP, detail))
    notes = {"ports": PORTS_HERE}
    if any(finding.check == "emulated machines" and finding.status == OK for finding in machines):
        notes.update({"/dev/shm": SHM_HERE, "leftovers": SHM_HERE})
    for finding in here:
        if finding.status == FAIL and finding.check in notes:
            finding = Finding(finding.check, SKIP, f"{finding.detail}; {notes[finding.check]}")
        found.append(finding)
    return Findings([*found, *machines])


def examine_machines(layout: Layout, part_config: str | Path | None = None) -> list[Finding]:
    """Let machines look at themselves: emulated ones, which are started and stopped, or real ones over ssh.

    A public address is not contacted unless that is allowed.

    Raises:
        InputError: a number of machines that cannot be, or an address file that cannot be read as one.
    """
    real, cluster = layout.real, layout.cluster()
    check, seconds, findings = "emulated machines", EMULATED_SECONDS, Findings()
    if real is not None:
        check, seconds = "ssh login", SSH_SECONDS
        findings += address_findings(cluster.machines, allow_public=real.allow_public)
    if findings.failed:
        return [*findings, Finding("machines", SKIP, "not contacted, as an address is not private")]
    config = "" if part_config is None else str(Path(part_config).absolute())
    try:
        with cluster:
            plan = layout.plan(cluster, command=[], part_config=config, ip_config="", log_dir="", cwd="")
            found = examine_cluster(cluster, plan, timeout=seconds)
    except InputError as error:
        return [*findings, Finding(check, FAIL, error.message, error.remedy)]
    names = ", ".join(machine.name for machine in plan.machines)
    reached = f"{len(plan.machines)} started and stopped" if real is None else f"{names} answered"
    return [*findings, Finding(check, OK, reached), *found]
