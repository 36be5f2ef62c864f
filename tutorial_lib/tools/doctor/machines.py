"""The preflight of a job, without a job: on emulated machines, or over ssh on those of an ``ip_config.txt``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.spec import Cluster, read_ip_config
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import RealMachines, cluster_of

NEEDS_A_JOB = {"command", "log folder", "ip_config"}  # without one, each machine would say three times: skipped
SSH_SECONDS = 60.0


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
    from tutorial_lib.cluster.preflight import address_findings

    findings = address_findings(read_ip_config(real.ip_config), allow_public=real.allow_public)
    if any(finding.status == FAIL for finding in findings):
        return [*findings, Finding("machines", SKIP, "not contacted, as an address is not private")]
    try:
        with cluster_of(None, None, real, servers=1) as cluster:
            reached = Finding("ssh login", OK, f"{', '.join(machine.name for machine in cluster.machines)} answered")
            return [*findings, reached, *preflight_of(cluster, part_config, SSH_SECONDS)]
    except InputError as error:
        return [*findings, Finding("ssh login", FAIL, error.message, error.remedy)]


def preflight_of(cluster: Cluster, part_config: str | Path | None, timeout: float = 30.0) -> Sequence[Finding]:
    """What the machines of an entered cluster say to a plan that starts nothing."""
    from tutorial_lib.cluster.preflight import examine_cluster

    config = str(Path(part_config).absolute()) if part_config is not None else ""
    plan = JobPlan(cluster.machines, [], config, ip_config="", log_dir="", cwd="", master_port=cluster.master_port)
    findings = examine_cluster(cluster, plan, timeout=timeout)
    return [f for f in findings if not (f.check in NEEDS_A_JOB and f.status == SKIP)]
