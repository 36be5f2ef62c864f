"""Explain the messages of a failed job by the signatures of ``explain.yaml``."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tutorial_lib.errors import InputError
from tutorial_lib.job.folder import continue_command
from tutorial_lib.launcher.coordinator import FAILURE_FILE
from tutorial_lib.launcher.logs import shortened

LARGEST = 64 << 20  # bytes that are read from the end of a log
LOGS = (".log", ".txt", ".out", ".err")


@dataclass
class Finding:
    """The first line that a signature matches. Its first fields are those of ``explain.yaml``."""

    name: str
    means: str
    look: str
    lesson: int
    file: str
    line: int  # counted from 1, or from the first line that is read of a large log
    text: str
    effect: bool = False  # another process failed first
    times: int = 0  # number of lines that the signature matches


@cache
def read_signatures() -> list[dict[str, Any]]:
    """Return the signatures with compiled patterns, in the order in which they are tried."""
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return [{**entry, "line": re.compile(entry["line"])} for entry in entries]


def find_logs(path: Path) -> list[Path]:
    """Return a log, or the logs of the last start in a run folder. The report of the failure is the first."""
    starts = {int(folder.name[7:]): folder for folder in path.glob("logs/resume-*") if folder.name[7:].isdecimal()}
    files = [path] if path.is_file() else sorted((starts[max(starts)] if starts else path).rglob("*"))
    logs = [file for file in files if file.is_file() and (file == path or file.suffix in LOGS)]
    if not logs:
        raise InputError(f"{path} has no logs ({', '.join(LOGS)})", "Give a log file, or the folder of a run.")
    return sorted(logs, key=lambda log: log.name != FAILURE_FILE)


def explain(run: Path, logs: list[Path]) -> list[Finding]:
    """Return the known failures in the order in which the logs name them. Effects count only if there is no cause."""
    stacks = max(run.rglob("stacks.txt"), key=lambda file: file.stat().st_mtime, default="stacks.txt beside the logs")
    again = continue_command("finale" if (run / "run").is_dir() else "train", run) or "start the job again"
    found, signatures = dict[str, Finding](), read_signatures()
    for log in logs:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LARGEST))
            for number, text in enumerate((line.decode(errors="replace") for line in file), start=1):
                if entry := next((one for one in signatures if one["line"].search(text)), None):
                    look = entry["look"].replace("{stacks}", str(stacks)).replace("{again}", again)
                    where = {"file": str(log), "line": number, "text": shortened(text.strip())}
                    found.setdefault(entry["name"], Finding(**{**entry, **where, "look": look})).times += 1
    return [finding for finding in found.values() if not finding.effect] or list(found.values())
