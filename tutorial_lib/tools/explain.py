"""What a failed job has printed, explained: ``python -m tutorial_lib explain LOG | RUN``.

``explain.yaml`` has the signatures. A line that fits none is not explained: better "unknown" than a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tutorial_lib.cluster.logs import shortened
from tutorial_lib.errors import InputError
from tutorial_lib.job.folder import continue_command

LARGEST = 64 << 20  # bytes of a log that are read, from its end; lines are counted from there
LOGS = ("*.log", "*.txt", "*.out", "*.err")


@dataclass(frozen=True)
class Signature:
    """An entry of ``explain.yaml``."""

    name: str
    line: re.Pattern[str]
    means: str
    look: str
    lesson: int
    effect: bool = False


@dataclass(frozen=True)
class Finding:
    """A line that a signature fits; ``number`` from 1, ``times``: how many lines it fits in all."""

    signature: Signature
    path: Path
    number: int
    text: str
    times: int = 1

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        told = {name: getattr(self.signature, name) for name in ("name", "means", "look", "lesson", "effect")}
        return {**told, "file": str(self.path), "line": self.number, "text": self.text, "times": self.times}


@cache
def signatures() -> tuple[Signature, ...]:
    """All of them, in the order in which they are tried."""
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return tuple(Signature(**{**entry, "line": re.compile(entry["line"])}) for entry in entries)


def logs_of(path: Path) -> list[Path]:
    """A log itself, or the logs of a run folder and of what lies below it.

    Raises:
        InputError: there is nothing to read.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path} does not exist", "Give a log file, or the folder of a run.")
    found = [folder for folder in path.glob("logs/resume-*") if folder.name.split("-", 1)[1].isdecimal()]
    starts = sorted(found, key=lambda folder: int(folder.name.split("-")[1]))
    path = starts[-1] if starts else path  # of a run that was continued, what happened last
    found = sorted({file for pattern in LOGS for file in path.rglob(pattern) if file.is_file()})
    if not found:
        raise InputError(f"{path} has no logs (*.log, *.txt, *.out, *.err)", "Give a log file, or the folder of a run.")
    return found


def explain(paths: Iterable[Path]) -> list[Finding]:
    """The first line of each signature that fits, causes before effects; effects alone only where there is no cause."""
    found: dict[str, Finding] = {}
    for path in paths:
        for number, text in _lines(path):
            signature = next((s for s in signatures() if s.line.search(text)), None)
            if signature is None:
                continue
            first = found.get(signature.name) or Finding(signature, path, number, shortened(text.strip()), times=0)
            found[signature.name] = replace(first, times=first.times + 1)
    causes = [finding for finding in found.values() if not finding.signature.effect]
    return sorted(causes or found.values(), key=lambda finding: signatures().index(finding.signature))


def advised(finding: Finding, run: Path) -> Finding:
    """Return the finding with advice for this run. A folder of `launch` has its logs in itself, and no checkpoint."""
    stacks = max(run.rglob("stacks.txt"), key=lambda file: file.stat().st_mtime, default="stacks.txt beside the logs")
    again = continue_command("finale" if (run / "run").is_dir() else "train", run) or "start the job again"
    look = finding.signature.look.replace("{stacks}", str(stacks)).replace("{again}", again)
    return replace(finding, signature=replace(finding.signature, look=look))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LARGEST))
        for number, line in enumerate(file, start=1):
            yield number, line.decode(errors="replace")
