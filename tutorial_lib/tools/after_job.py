"""Commands after a job: ``explain`` (signatures in ``explain.yaml``), ``trace`` and ``fetch``."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml

from tutorial_lib.errors import InputError, JobError, printable
from tutorial_lib.files import JsonObject, open_regular_file, replace_file
from tutorial_lib.job.folder import PENDING_FILE
from tutorial_lib.job.remote_files import fetch_results
from tutorial_lib.launcher.coordinator import FAILURE_FILE, Event
from tutorial_lib.launcher.logs import truncate_line
from tutorial_lib.tools.options import about, app
from tutorial_lib.trainer.events import PHASES

LOGS = (".log", ".txt", ".out", ".err")
Track = tuple[str, str]  # machine and name


@app.command
def explain(paths: Annotated[list[Path], about("Log files, or the folder of a run.")], /) -> None:
    """Print the meaning of the errors of a failed job, the first thing to check, and the lesson about them."""
    logs = [log for path in paths for log in find_logs(path)]
    causes = find_causes(logs)
    for failure in causes:
        more = f", and {failure['times'] - 1} more" if failure["times"] > 1 else ""
        print(printable(f"{failure['name']}\n  {failure['place']}{more}\n    {failure['text']}"))
        print(f"  means: {failure['means']}\n  what to do: {failure['remedy']}\n  lesson: {failure['lesson']:02d}\n")
    if not causes:
        remedy = "docs/debugging.md lists the first command for each symptom."
        raise JobError(f"unknown: {logs[0]} contains no message that this command recognizes", remedy)


@cache
def read_signatures() -> list[JsonObject]:
    entries = yaml.safe_load(Path(__file__).with_name("explain.yaml").read_text())
    return [{**entry, "line": re.compile(entry["line"])} for entry in entries]


def find_logs(path: Path) -> list[Path]:
    """Return a log, or the logs of the last start in a run folder. The report of the failure is the first."""
    starts = {int(folder.name[7:]): folder for folder in path.glob("logs/resume-*") if folder.name[7:].isdecimal()}
    files = [path] if path.is_file() else sorted((starts[max(starts)] if starts else path).rglob("*"))
    logs = [file for file in files if file.is_file() and (file == path or file.suffix in LOGS)]
    if not logs:
        raise InputError(f"{path} has no logs ({', '.join(LOGS)})", "Give a log file, or the folder of a run.")
    return sorted(logs, key=lambda log: log.name != FAILURE_FILE)


def find_causes(logs: list[Path]) -> list[JsonObject]:
    """Return the known failures in the order in which the logs name them. Effects count only if there is no cause."""
    causes: dict[str, JsonObject] = {}
    for log in logs:
        with log.open(errors="replace") as lines:
            for number, text in enumerate(lines, start=1):
                if entry := next((s for s in read_signatures() if s["line"].search(text)), None):
                    first = {**entry, "place": f"{log}:{number}", "text": truncate_line(text.strip()), "times": 0}
                    causes.setdefault(entry["name"], first)["times"] += 1
    return [failure for failure in causes.values() if not failure.get("effect")] or list(causes.values())


@app.command
def trace(
    run: Annotated[Path, about("Run folder.")],
    /,
    *,
    out: Annotated[Path | None, about("File to write. (default: RUN/trace.json)")] = None,
) -> None:
    """Write the timeline of the last start of a job for Perfetto and chrome://tracing."""
    path = run / "events.jsonl"
    out = out or run / "trace.json"
    trace_events, last_end = [], dict[Track, int]()  # end of the last span of each track
    try:
        with open(open_regular_file(path), "rb") as file:
            content = file.read()
        events = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
        starts = [k for k, event in enumerate(events) if event.get("stage") == "checks"] or [0]
        offsets = {event["machine"]: event["offset"] for event in events if event["kind"] == "clock"}
        for event in events:  # to the clock of the coordinator
            event["machine"] = event.get("machine", "here")
            event["ahead"] = offsets.get(event["machine"], 0.0)
            event["time"] -= event["ahead"]
        for track, name, start, end in find_spans(events[starts[-1] :]):
            first = max(round(1e6 * start), last_end.get(track, 0))  # Perfetto drops spans that overlap by rounding
            last_end[track] = max(first, round(1e6 * end))
            where = {"pid": track[0], "tid": track[1]}  # names instead of numbers, as in the traces of PyTorch
            trace_events.append({"ph": "X", "name": name, "ts": first, "dur": last_end[track] - first, **where})
        if not trace_events:
            raise InputError(f"{path} has no events of a job", "RUN must be the folder of a started job.")
        for event in events[starts[-1] :]:
            if event["kind"] == "traffic":
                where = {"pid": event["machine"], "ts": round(1e6 * event["time"])}
                trace_events.append({"ph": "C", "name": "sent", "args": {"bytes": event["bytes_sent"]}, **where})
        with replace_file(out) as file:  # does not follow a link in the folder of another user
            file.write(json.dumps({"traceEvents": trace_events}, allow_nan=False).encode())
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", "RUN must be a run folder.") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path} is damaged: an event has wrong fields", "Remove the damaged lines.") from None
    for name, offset in offsets.items():
        print(f"clock of {name}: {1e3 * offset:+.2f} ms, corrected")
    print(f"wrote {out}. Open it in https://ui.perfetto.dev or chrome://tracing")


def find_spans(events: list[Event]) -> Iterator[tuple[Track, str, float, float]]:
    """Yield track, name, start and end of everything that took time in a job."""
    running: dict[Track, tuple[str, float]] = {}  # name and start of work without an end
    for event in events:
        kind, machine, time = event["kind"], event["machine"], event["time"]
        rank = f"rank {event.get('rank')}"
        if kind in ("stage", "started", "exited"):
            process = (machine, f"{event.get('role')} {event.get('index')}")
            track: Track = ("coordinator", "stages") if kind == "stage" else process
            if track in running:
                yield track, *running.pop(track), time
            if kind != "exited":
                running[track] = event.get("stage", "running"), time
        elif kind == "span":
            yield (machine, rank), event["name"], time - event["seconds"], time
        elif kind == "step":
            start = time - sum(event[phase] for phase in PHASES)
            yield (machine, rank), f"epoch {event['epoch'] + 1}, step {event['step'] + 1}", start, time
            for phase in PHASES:
                yield (machine, f"{rank}, phases"), phase, start, start + event[phase]
                start += event[phase]
            for name, (start, seconds) in event.get("background", {}).items():
                start -= event["ahead"]
                yield (machine, f"{rank}, batches"), name, start, start + seconds
    for track, begun in running.items():
        yield track, *begun, max(event["time"] for event in events)


@app.command
def fetch(
    run: Annotated[Path, about("Run folder of a job that was started with --copy_to.")],
    /,
    *,
    trust: Annotated[bool, about("Do not ask before connecting to the machines that the folder names.")] = False,
) -> None:
    """Download the results that an interrupted job with --copy_to has left on its machines, and verify them."""
    run = run.absolute()
    is_pending = (run / PENDING_FILE).is_file()
    if not is_pending and not (run / "events.jsonl").is_file():
        raise InputError(f"{run} is not the folder of a run with --copy_to: it has no {PENDING_FILE}")
    if problems := fetch_results(run, print, trust=trust):
        raise JobError(problems[0], "\n".join(problems[1:]))
    print(f"all results are in {run}" if is_pending else f"{run}: nothing is left to fetch")
