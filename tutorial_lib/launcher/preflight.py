"""Check all machines before a job. Every machine checks itself, and the coordinator compares the answers.

    coordinator  -- plan -->  ``python -m tutorial_lib.launcher.preflight INDEX`` on each machine, at the same time
                 <-- one JSON document: environment, two times, findings --

The backend of the job starts this program, so the program fails if an agent would fail.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict

from tutorial_lib.errors import InputError, attempts
from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.checks import CHECKS, environment
from tutorial_lib.launcher.environment import run_module
from tutorial_lib.launcher.findings import FAIL, OK, Finding, Findings, made, verdict
from tutorial_lib.launcher.jobspec import Machine

CLOCK_SECONDS = 5.0  # with a larger difference of clocks, logs and events cannot be put in order
SAME_EVERYWHERE = ("python", "torch", "dgl", "tutorial_lib")
OF_THE_JOB = ("NUM_CLIENT", "NUM_SERVER", "NUM_SAMPLER", "IP_CONFIG", "CONF_PATH", "DIST_MODE")
LINES_OF_STDERR = 5
ENDING_SECONDS = 2.0  # for a check that was killed


class PreflightFailed(InputError):
    """A check failed, so the job was not started.

    Attributes:
        findings: results of all checks, including the passed ones.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = list(findings)
        first, *rest = Findings(findings).failed
        super().__init__(first.sentence, "\n".join([*first.remedy.splitlines(), *map(str, rest)]))


def require(cluster: Backend, plan: JobPlan, *, allow_public: bool = False) -> list[Finding]:
    """Run all checks before the start of a job and return the findings.

    Args:
        cluster: a cluster that has been entered.
        allow_public: accept public addresses.

    Raises:
        PreflightFailed: a check failed. The message names the first check and its machine, the remedy the others.
    """
    findings = Findings([*address_findings(plan.machines, allow_public=allow_public), client_finding(plan)])
    if not findings.failed:  # otherwise the checks would connect to a public machine
        findings += examine_cluster(cluster, plan)
    if findings.failed:
        raise PreflightFailed(findings)
    return findings


def address_findings(machines: Sequence[Machine], *, allow_public: bool = False) -> list[Finding]:
    """Check that all addresses are private, because DGL's RPC unpickles every message that arrives on its ports."""
    findings = []
    for machine in machines:
        address = ipaddress.ip_address(machine.address)
        if not address.is_private:
            detail = f"{address} is public, and allowed explicitly"
            if not allow_public:
                detail = f"{address} is a public address; DGL unpickles what arrives on its ports: "
                detail += "who reaches them runs code"
            remedy = "Use addresses of a private network, or, behind a firewall, --allow_public_addresses."
            findings.append(verdict(allow_public, "addresses", detail, remedy, machine.name))
    return findings or [Finding("addresses", OK, f"{len(machines)} private ones")]


def client_finding(plan: JobPlan) -> Finding:
    """Check the variables of DGL. With a wrong number of clients, the servers wait forever."""
    if not plan.part_config:
        return Finding("clients", OK, f"{plan.world_size} ranks")
    job = plan.dgl_environment()
    wrong = [name for name in (f"DGL_{name}" for name in OF_THE_JOB) if plan.env.get(name, job[name]) != job[name]]
    if wrong:
        given = ", ".join(f"{name} is set to {plan.env[name]!r}, the job needs {job[name]!r}" for name in wrong)
        return Finding("clients", FAIL, given, "Leave the variable out of --extra_envs: the job sets it.")
    sizes = f"{len(plan.machines)} machines x {plan.trainers} trainers x (1 + {plan.samplers} samplers)"
    return Finding("clients", OK, f"{plan.num_clients} = {sizes}")


def examine_cluster(cluster: Backend, plan: JobPlan, *, timeout: float = 30.0) -> Findings:
    """Run the preflight on all machines at the same time and compare their answers.

    Args:
        cluster: a cluster that has been entered. Its ``popen`` starts the program.
        timeout: seconds. A failed finding names each machine without an answer in this time.
    """
    started: list[subprocess.Popen] = []
    with ThreadPoolExecutor(len(plan.machines)) as pool:
        try:
            asked = [pool.submit(_ask, cluster, plan, k, timeout, started) for k in range(len(plan.machines))]
            for left in attempts("the machines to check themselves", timeout + 2 * ENDING_SECONDS, pause=0):
                if not wait(asked, min(left, 1.0)).not_done:
                    break
        finally:
            for process in started:  # after Ctrl-C, some programs still run
                process.kill()
    findings, environments = Findings(), {}
    for machine, task in zip(plan.machines, asked, strict=True):
        found, versions = task.result()
        findings += found
        environments |= {machine.name: versions} if versions else {}
    return Findings([*findings, *version_findings(environments, environment())])


def _ask(
    cluster: Backend, plan: JobPlan, index: int, timeout: float, started: list[subprocess.Popen]
) -> tuple[list[Finding], dict[str, str]]:
    """Run the program on a machine. Return its findings and environment, or a finding with the reason and {}."""
    machine, sent, output, errors, problem = plan.machines[index], time.time(), b"", b"", ""
    argv = [*run_module(sys.executable, "tutorial_lib.launcher.preflight"), str(index), str(timeout)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    try:
        process = cluster.popen(machine, argv, cwd=plan.cwd or None, **pipes)
        started.append(process)
        output, errors = process.communicate(plan.to_json().encode() + b"\n", timeout=timeout)
    except OSError as error:
        problem = f"cannot start {argv[0]!r}: {error.strerror}"
    except subprocess.TimeoutExpired:
        problem = f"no answer within {timeout:g} s"
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=ENDING_SECONDS)
    received = time.time()
    said = errors.decode(errors="replace").strip().splitlines()[-LINES_OF_STDERR:]
    if not problem:
        problem = f"the preflight ended with exit code {process.returncode}: {said[-1] if said else 'no output'}"
        with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
            # Anything before the last line was printed by the shell of that machine (~/.bashrc).
            answer = json.loads(output.decode(errors="replace").strip().splitlines()[-1])
            found = [Finding(**{**values, "machine": machine.name}) for values in answer["findings"]]
            clock = clock_finding(machine.name, sent, answer["started"], answer["time"], received)
            return [*found, clock], answer["environment"]
    remedy = "\n".join(said) or "Nothing was printed. Try by hand what the job does: start python there."
    return [Finding("preflight", FAIL, problem, remedy, machine.name)], {}


def clock_finding(name: str, sent: float, started: float, finished: float, received: float) -> Finding:
    """Compare the clock of a machine with ours. As in NTP, the error is half of the time on the network.

    Args:
        sent, received: Unix seconds of our clock. ``started`` and ``finished`` are those of the machine.
    """
    skew = ((started - sent) + (finished - received)) / 2
    error = ((received - sent) - (finished - started)) / 2
    if abs(skew) <= error:
        detail = f"agrees with the coordinator's, as far as can be told: to {error:.2f} s"
    else:
        way = "ahead of" if skew > 0 else "behind"
        detail = f"{abs(skew):.2f} s {way} the coordinator's (give or take {error:.2f} s)"
    remedy = "Logs and events could not be put in order. Synchronise: sudo timedatectl set-ntp true"
    return verdict(abs(skew) - error <= CLOCK_SECONDS, "clock", detail, remedy, name)


def version_findings(environments: Mapping[str, dict[str, str]], own: dict[str, str]) -> list[Finding]:
    """Compare the versions with the first machine, and the version of tutorial_lib with the coordinator.

    Args:
        environments: results of ``checks.environment`` by machine name, in the order of the plan.
        own: the environment of the coordinator.
    """
    if not environments:
        return []
    first_name, first = next(iter(environments.items()))
    wanted = {**first, "tutorial_lib": own["tutorial_lib"]}
    remedy = "Install the same requirements.lock and the same tutorial_lib on every machine."
    findings = []
    for name, found in environments.items():
        for key in SAME_EVERYWHERE:
            version = found.get(key, "unknown")
            if version in ("not installed", "unknown"):
                why = f" for {found.get('executable', 'python')}"
            elif version != wanted.get(key):
                why = f", {'the coordinator' if key == 'tutorial_lib' else first_name} has {wanted.get(key)}"
            else:
                continue
            findings.append(Finding("versions", FAIL, f"{key} is {version}{why}", remedy, name))
    same = ", ".join(f"{key} {first.get(key)}" for key in SAME_EVERYWHERE)
    return findings or [Finding("versions", OK, f"{same} on {len(environments)} machines")]


def main() -> None:
    """Run ``python -m tutorial_lib.launcher.preflight INDEX SECONDS``. A line of standard input has the plan."""
    started = time.time()
    signal.alarm(math.ceil(float(sys.argv[2])) + 5)  # if the connection breaks, no other process stops this one
    try:
        plan = JobPlan.from_json(sys.stdin.readline())
    except (ValueError, KeyError, TypeError) as error:  # the versions in the answer show the reason
        findings = [Finding("plan", FAIL, f"this machine's tutorial_lib cannot read the plan: {error}")]
    else:
        findings = made(CHECKS, plan, int(sys.argv[1]))
    answer = {"environment": environment(), "findings": [asdict(finding) for finding in findings]}
    print(json.dumps({**answer, "started": started, "time": time.time()}), flush=True)


if __name__ == "__main__":
    main()
