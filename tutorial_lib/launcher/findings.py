"""The results of checks, which the doctor and the preflight of a job report."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from tutorial_lib.errors import InputError

OK, FAIL, SKIP = "ok", "fail", "skip"


@dataclass(frozen=True)
class Finding:
    check: str
    status: str  # ok, fail or skip; the detail of a skip is the reason
    detail: str
    remedy: str = ""  # advice for a fail, one or several lines
    machine: str = ""  # empty for this computer and for the whole job

    @property
    def sentence(self) -> str:
        """The finding as one line, such as ``machine-1: ports: 30050 is taken``."""
        return "".join(f"{part}: " for part in (self.machine, self.check) if part) + self.detail

    def __str__(self) -> str:
        line = f"[{self.status}]".ljust(7) + self.sentence
        return line + "".join(f"\n       -> {text}" for text in self.remedy.splitlines())


class Findings(list[Finding]):
    """A list of findings that is shown as lines. Those that ``failed`` prevent a job."""

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self if finding.status == FAIL]

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


class PreflightFailed(InputError):
    """A check failed, so no process of the job was started. ``findings`` are the results of all checks."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        first, *rest = findings.failed
        super().__init__(first.sentence, "\n".join([*first.remedy.splitlines(), *map(str, rest)]))


def verdict(passed: bool, check: str, detail: str, remedy: str, machine: str = "") -> Finding:
    """Return a finding that is ``ok``, or a ``fail`` with the remedy."""
    return Finding(check, OK if passed else FAIL, detail, "" if passed else remedy, machine)


def run_checks(checks: Iterable[Callable], *arguments: object, **options: object) -> Findings:
    """Return the findings of all checks, each of which returns one or several. An exception is a finding, too."""
    findings = Findings()
    for check in checks:
        try:
            result = check(*arguments, **options)
            findings += [result] if isinstance(result, Finding) else result
        except Exception as error:
            hidden = isinstance(error, psutil.Error | PermissionError)  # from this user, but perhaps in order
            detail = f"the check ended with {type(error).__name__}: {error}"
            findings.append(Finding(check.__name__, SKIP if hidden else FAIL, detail, "Report this error."))
    return findings
