"""One checked thing and its verdict: what the doctor and the preflight of a job report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

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


def report(findings: Iterable[Finding]) -> bool:
    """Print one line for each finding, plain text; returns whether none of them is a fail."""
    findings = Findings(findings)
    print(repr(findings))
    return not findings.failed
