"""One checked thing and its verdict: what the doctor and the preflight of a job report; and how a check is made."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

OK, FAIL, SKIP = "ok", "fail", "skip"


@dataclass(frozen=True)
class Finding:
    """One checked thing.

    Attributes:
        check: what was looked at.
        status: ``ok``, ``fail`` or ``skip``; a skip says in ``detail`` why nothing was checked.
        detail: what was found.
        remedy: what to do about a fail; may span lines.
        machine: name of the machine that was looked at; empty for this computer or for the job as a whole.
    """

    check: str
    status: str
    detail: str
    remedy: str = ""
    machine: str = ""

    @property
    def sentence(self) -> str:
        """``machine-1: ports: 30050 is taken``."""
        return "".join(f"{part}: " for part in (self.machine, self.check) if part) + self.detail

    def __str__(self) -> str:
        line = f"[{self.status}]".ljust(7) + self.sentence
        return line + "".join(f"\n       -> {text}" for text in self.remedy.splitlines())

    def to_dict(self) -> dict[str, str]:
        """JSON types only."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Finding:
        """Inverse of ``to_dict``; what another version of this class knows besides is left out."""
        return cls(**{f.name: str(values[f.name]) for f in fields(cls) if f.name in values})


Check = Callable[..., Finding | Iterable[Finding]]


class Findings(list[Finding]):
    """A list of findings that shows as its lines, in a terminal and as the last line of a notebook cell."""

    @property
    def failed(self) -> list[Finding]:
        """Those that must be dealt with before a job."""
        return [finding for finding in self if finding.status == FAIL]

    def __repr__(self) -> str:
        return "\n".join(str(finding) for finding in self)


def verdict(good: bool, check: str, detail: str, remedy: str, machine: str = "") -> Finding:
    """``ok`` without, or ``fail`` with the remedy."""
    return Finding(check, OK if good else FAIL, detail, "" if good else remedy, machine)


def made(checks: Iterable[Check], *arguments: Any) -> Findings:
    """What the checks find, each called with these arguments; one that breaks off is a finding, too."""
    findings = Findings()
    for check in checks:
        try:
            found = check(*arguments)
            findings += [found] if isinstance(found, Finding) else found
        except (psutil.Error, PermissionError) as error:  # what we are not let see may be in order
            findings.append(Finding(check.__name__, SKIP, f"could not be made: {type(error).__name__}: {error}"))
        except Exception as error:  # anything else would be found again in the middle of a job
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"({Path(frame.filename).name}:{frame.lineno}, {frame.name})"
            detail = f"broke off: {type(error).__name__}: {error} {place}"
            findings.append(Finding(check.__name__, FAIL, detail, "Look at what that line reads on this machine."))
    return findings


def report(findings: Findings) -> bool:
    """Print one line for each finding, plain text; returns whether none of them is a fail."""
    print(repr(findings))
    return not findings.failed
