"""Before a job: every machine looks at itself, and the coordinator compares what they say.

    coordinator  -- plan -->  ``python -m tutorial_lib.cluster.preflight INDEX`` on each machine, at the same time
                 <-- one JSON document: environment, two times, findings --

The same transport as the job's starts it, so that it fails where an agent would.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tutorial_lib.cluster.findings import FAIL, OK, Finding, Findings, verdict
from tutorial_lib.cluster.plan import JobPlan, run_module
from tutorial_lib.cluster.spec import Cluster, Machine
from tutorial_lib.errors import InputError, attempts

CLOCK_SECONDS = 5.0  # logs and events of machines whose clocks differ by more cannot be put in order
SAME_EVERYWHERE = ("python", "torch", "dgl", "tutorial_lib", "digest")
LINES_OF_STDERR = 5
ENDING_SECONDS = 5.0  # for a check that was killed


class PreflightFailed(InputError):
    """The job was not started: something on some machine would have made it fail.

    Attributes:
        findings: all of them, also the good ones.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = list(findings)
        first, *rest = Findings(findings).failed
        super().__init__(first.sentence, "\n".join([*first.remedy.splitlines(), *map(str, rest)]))


def require(cluster: Cluster, plan: JobPlan, *, allow_public: bool = False, timeout: float = 30.0) -> list[Finding]:
    """Check everything and return the findings; nothing of the job has been started.

    Args:
        cluster: entered.
        allow_public: accept addresses that anybody may reach.
        timeout: seconds that each machine may take.

    Raises:
        PreflightFailed: naming the first failing check and its machine; the remedy has the others.
    """
    findings = Findings([*address_findings(plan.machines, allow_public=allow_public), *client_findings(plan)])
    if not findings.failed:  # else a public machine would be contacted
        findings += examine_cluster(cluster, plan, timeout=timeout)
    if findings.failed:
        raise PreflightFailed(findings)
    return findings


def address_findings(machines: Sequence[Machine], *, allow_public: bool = False) -> list[Finding]:
    """DGL's RPC unpickles whatever arrives on its ports, so they belong on private networks only."""
    findings = []
    for machine in machines:
        address = ipaddress.ip_address(machine.address)
        if address.is_private or address.is_loopback or address.is_link_local:
            continue
        if allow_public:
            findings.append(Finding("addresses", OK, f"{address} is public, and allowed explicitly", "", machine.name))
            continue
        detail = f"{address} is a public address; DGL unpickles what arrives on its ports: who reaches them runs code"
        remedy = "Use addresses of a private network, or, behind a firewall, --allow_public_addresses."
        findings.append(Finding("addresses", FAIL, detail, remedy, machine.name))
    return findings or [Finding("addresses", OK, f"{len(machines)} private ones")]


def client_findings(plan: JobPlan, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """With another number of clients than there are, DGL's servers wait for ever.

    Args:
        environ: the user's environment, by default this process's. What it sets is replaced by the job's own values.
    """
    environ = os.environ if environ is None else environ
    own = {
        "DGL_NUM_CLIENT": str(plan.num_clients),
        "DGL_NUM_SERVER": str(plan.servers),
        "DGL_NUM_SAMPLER": str(plan.samplers),
        "DGL_IP_CONFIG": plan.ip_config,
        "DGL_CONF_PATH": plan.part_config,
        "DGL_DIST_MODE": "distributed",
    }
    wrong = [name for name in own if plan.env.get(name, own[name]) != own[name]]
    if wrong:
        given = ", ".join(f"{name} is set to {plan.env[name]!r}, the job needs {own[name]!r}" for name in wrong)
        return [Finding("clients", FAIL, given, "Leave the variable out of --extra_envs: the job sets it.")]
    ignored = [name for name in own if environ.get(name, own[name]) != own[name]]
    note = f"; {', '.join(ignored)} of your shell is not used" if ignored else ""
    sizes = f"{len(plan.machines)} machines x {plan.trainers} trainers x (1 + {plan.samplers} samplers)"
    return [Finding("clients", OK, f"{plan.num_clients} = {sizes}{note}")]


@dataclass
class Answer:
    """What came back from one machine: a document, or the reason why there is none. Times are unix seconds."""

    sent: float
    received: float = math.nan
    document: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    stderr: str = ""


def examine_cluster(cluster: Cluster, plan: JobPlan, *, timeout: float = 30.0) -> list[Finding]:
    """Run the preflight on all machines at the same time and compare their answers.

    Args:
        cluster: entered; its ``popen`` is what starts the program, its ``python`` (if it has one) the interpreter.
        timeout: seconds; a machine that has not answered by then is named in a fail.
    """
    from tutorial_lib.cluster.preflight_checks import environment

    findings = Findings()
    environments: dict[str, dict[str, str]] = {}
    for machine, answer in zip(plan.machines, _ask_machines(cluster, plan, timeout), strict=True):
        if answer.problem:
            remedy = answer.stderr or "Nothing was printed. Try by hand what the job does: start python there."
            findings.append(Finding("preflight", FAIL, answer.problem, remedy, machine.name))
            continue
        environments[machine.name] = answer.document["environment"]
        found = [Finding.from_dict(values) for values in answer.document["findings"]]
        findings += [replace(finding, machine=machine.name) for finding in found]
        findings.append(clock_finding(machine.name, answer))
    return Findings([*findings, *version_findings(environments, environment())])


def _ask_machines(cluster: Cluster, plan: JobPlan, timeout: float) -> list[Answer]:
    """Start the preflight everywhere; from each machine an answer, or the reason why there is none in time."""
    python = getattr(cluster, "python", None) or sys.executable
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    answers = []
    asked: list[tuple[Machine, subprocess.Popen, threading.Thread]] = []
    try:
        for index, machine in enumerate(plan.machines):
            answers.append(answer := Answer(time.time()))
            argv = [*run_module(python, "tutorial_lib.cluster.preflight"), str(index), str(timeout)]
            try:
                process = cluster.popen(machine, argv, cwd=plan.cwd or None, **pipes)
            except OSError as error:
                answer.problem = f"cannot start {argv[0]!r}: {error.strerror}"
                continue
            thread = threading.Thread(target=_collect, args=(process, plan, timeout, answer), daemon=True)
            asked.append((machine, process, thread))
            thread.start()
        for machine, _process, thread in asked:
            for left in attempts(f"the checks on {machine.name}", timeout + ENDING_SECONDS, pause=0):
                thread.join(min(left, 1.0))
                if not thread.is_alive():
                    break
    finally:
        for _machine, process, _thread in asked:  # after Ctrl-C, some still run
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=ENDING_SECONDS)
    return answers


def _collect(process: subprocess.Popen, plan: JobPlan, timeout: float, answer: Answer) -> None:
    try:
        output, errors = process.communicate(plan.to_json().encode() + b"\n", timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = b"", b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=2)
        answer.problem = f"no answer within {timeout:g} s"
    answer.received = time.time()
    answer.stderr = "\n".join(errors.decode(errors="replace").strip().splitlines()[-LINES_OF_STDERR:])
    if answer.problem:
        return
    try:
        # Anything before the last line was printed by the shell of that machine (~/.bashrc).
        document = json.loads(output.decode().strip().splitlines()[-1])
        answer.document = {key: document[key] for key in ("environment", "findings", "started", "time")}
    except (ValueError, IndexError, KeyError, TypeError):
        last = answer.stderr.splitlines()[-1:] or ["no output"]
        answer.problem = f"the preflight ended with exit code {process.returncode}: {last[0]}"


def clock_finding(name: str, answer: Answer) -> Finding:
    """The machine's clock against ours, as NTP has it: half of the time spent on the way is the error."""
    started, finished = float(answer.document["started"]), float(answer.document["time"])
    skew = ((started - answer.sent) + (finished - answer.received)) / 2
    error = ((answer.received - answer.sent) - (finished - started)) / 2
    if abs(skew) <= error:
        detail = f"agrees with the coordinator's, as far as can be told: to {error:.2f} s"
    else:
        way = "ahead of" if skew > 0 else "behind"
        detail = f"{abs(skew):.2f} s {way} the coordinator's (give or take {error:.2f} s)"
    remedy = "Logs and events could not be put in order. Synchronise: sudo timedatectl set-ntp true"
    return verdict(abs(skew) - error <= CLOCK_SECONDS, "clock", detail, remedy, name)


def version_findings(environments: Mapping[str, dict[str, str]], own: dict[str, str]) -> list[Finding]:
    """Compare machines: with the first one, and tutorial_lib, which both sides speak, with the coordinator.

    Args:
        environments: by machine name, in the order of the plan; as ``preflight_checks.environment`` makes them.
        own: the coordinator's.
    """
    if not environments:
        return []
    first_name, first = next(iter(environments.items()))
    remedy = "Install the same requirements.lock and the same tutorial_lib on every machine."
    findings = []
    for name, found in environments.items():
        for key in SAME_EVERYWHERE:
            mine = key in ("tutorial_lib", "digest")
            version, expected = (place.get(key, "unknown") for place in (found, own if mine else first))
            detail = f"{'the text of tutorial_lib (digest)' if key == 'digest' else key} is {version}"
            if version in ("not installed", "unknown"):
                detail += f" for {found.get('executable', 'python')}"
            elif version != expected:
                detail += f", {'the coordinator' if mine else first_name} has {expected}"
            else:
                continue
            findings.append(Finding("versions", FAIL, detail, remedy, name))
    same = ", ".join(f"{key} {first.get(key)}" for key in SAME_EVERYWHERE if key != "digest")
    return findings or [Finding("versions", OK, f"{same} on {len(environments)} machines")]


def main() -> None:
    """``python -m tutorial_lib.cluster.preflight INDEX [SECONDS]``, with the plan as a line of standard input."""
    started = time.time()
    # A connection that breaks leaves nobody to stop us.
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    signal.alarm(math.ceil(seconds) + 5)
    from tutorial_lib.cluster.preflight_checks import environment, examine_machine

    text = sys.stdin.readline()
    try:
        plan = JobPlan.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        # The versions, which go with it, will say why.
        findings = [Finding("plan", FAIL, f"this machine's tutorial_lib cannot read the plan: {error}")]
    else:
        findings = examine_machine(plan, int(sys.argv[1]), checksum_seconds=seconds / 3)
    document = {
        "environment": environment(),
        "findings": [finding.to_dict() for finding in findings],
        "started": started,
        "time": time.time(),
    }
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
