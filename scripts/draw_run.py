"""Draw an animated picture of a run on two machines from its event log.

    python scripts/draw_run.py RUN docs/run.svg

RUN is a run folder of ``train --emulate 2``. All numbers in the picture are from its events.jsonl and result.json, and
the time is scaled to ten seconds.
"""

import json
import sys
from html import escape
from itertools import pairwise
from pathlib import Path

SECONDS, PAUSE = 10.0, 4.0  # duration of the training in the picture, and of its end
LEFT, TOP, WIDTH, HEIGHT = 520, 70, 310, 190  # position and size of the chart
STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; font-size: 14px; fill: #24292f }
.small { font-size: 12px; fill: #57606a } .mono { font-family: ui-monospace, monospace; font-size: 12px }
.machine { fill: #f6f8fa; stroke: #8c959f } .process { fill: #ffffff; stroke: #57606a }
.cable { stroke: #0969da; stroke-width: 3; stroke-dasharray: 7 7 } .axis { stroke: #8c959f }
.curve { fill: none; stroke-width: 2.5 }
"""


def read_run(run: Path) -> tuple[dict, list[dict]]:
    """Return the result and the sorted events of a run."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return json.loads((run / "result.json").read_text()), sorted(events, key=lambda event: event["time"])


def animate_visibility(times: list[float], k: int) -> str:
    """Return an animation that shows an element while the k-th text is the newest."""
    total = SECONDS + PAUSE
    end = times[k + 1] if k + 1 < len(times) else total
    keys = f"0;{times[k] / total:.4f};{end / total:.4f};1"
    last = k + 1 == len(times)
    values = f"0;1;{1 if last else 0};{1 if last else 0}"
    return (
        f'<animate attributeName="opacity" dur="{total}s" repeatCount="indefinite" calcMode="discrete" '
        f'keyTimes="{keys}" values="{values}"/>'
    )


def draw_curve(points: list[tuple[float, float]], times: list[float], color: str) -> str:
    """Return a line that grows with the run."""
    total = SECONDS + PAUSE
    path = " ".join(f"{'M' if k == 0 else 'L'}{x:.1f} {y:.1f}" for k, (x, y) in enumerate(points))
    lengths = [0.0]
    for (x, y), (u, v) in pairwise(points):
        lengths.append(lengths[-1] + ((x - u) ** 2 + (y - v) ** 2) ** 0.5)
    total_length = lengths[-1]
    keys = ";".join(f"{time / total:.4f}" for time in [0.0, *times, total])
    values = ";".join(f"{total_length - length:.1f}" for length in [0.0, *lengths, total_length])
    return (
        f'<path class="curve" stroke="{color}" d="{path}" stroke-dasharray="{total_length:.1f}">'
        f'<animate attributeName="stroke-dashoffset" dur="{total}s" repeatCount="indefinite" '
        f'keyTimes="{keys}" values="{values}"/></path>'
    )


def draw_machine(x: int, name: str, sent: int, nodes: int) -> str:
    """Return a machine with its server and its trainer."""
    return f"""<g transform="translate({x} 70)">
<rect class="machine" width="190" height="190" rx="8"/><text x="12" y="24" font-weight="600">{escape(name)}</text>
<rect class="process" x="12" y="38" width="166" height="46" rx="5"/><text x="22" y="58">DGL server</text>
<text class="small" x="22" y="75">half of the graph</text>
<rect class="process" x="12" y="94" width="166" height="46" rx="5"/><text x="22" y="114">trainer</text>
<text class="small" x="22" y="131">{nodes:,} training nodes</text>
<text class="small" x="12" y="164">sent during the run:</text>
<text class="mono" x="12" y="181">{sent / 1e6:.1f} MB</text></g>"""


def draw_svg(result: dict, events: list[dict]) -> str:
    """Return the text of the SVG file."""
    epochs = [event for event in events if event["kind"] == "epoch"]
    start = next(event["time"] for event in events if event["kind"] == "step")
    duration = epochs[-1]["time"] - start
    times = [SECONDS * (event["time"] - start) / duration for event in epochs]
    losses = [event["loss"] for event in epochs]
    scores = [event["val_accuracy"] for event in epochs]
    xs = [LEFT + WIDTH * k / (len(epochs) - 1) for k in range(len(epochs))]
    loss_points = [(x, TOP + HEIGHT * (1 - loss / max(losses))) for x, loss in zip(xs, losses, strict=True)]
    score_points = [(x, TOP + HEIGHT * (1 - score)) for x, score in zip(xs, scores, strict=True)]
    split = {event["machine"]: event["train_nodes"] for event in events if event["kind"] == "split"}
    names = list(result["bytes_sent"])
    lines = [
        f'<text class="mono" x="{LEFT}" y="{TOP + HEIGHT + 38}" opacity="0">'
        f"epoch {event['epoch'] + 1:2d}/{len(epochs)}  loss {event['loss']:.4f}  valid {event['val_accuracy']:.4f}"
        f"{animate_visibility(times, k)}</text>"
        for k, event in enumerate(epochs)
    ]
    command = f"python -m tutorial_lib train --dataset {result['dataset']} --emulate {result['machines']}"
    end = f"test accuracy {result['test_accuracy']:.4f}, after {result['seconds']:.0f} s"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 330" role="img"
 aria-label="Two machines training">
<style>{STYLE}</style><rect width="860" height="330" fill="#ffffff"/>
<text class="mono" x="20" y="34">$ {escape(command)}</text>
{draw_machine(20, names[0], result["bytes_sent"][names[0]], split[names[0]])}
{draw_machine(290, names[1], result["bytes_sent"][names[1]], split[names[1]])}
<line class="cable" x1="210" y1="160" x2="290" y2="160">
<animate attributeName="stroke-dashoffset" from="28" to="0" dur="1s" repeatCount="indefinite"/></line>
<text class="small" x="250" y="136" text-anchor="middle">rows,</text>
<text class="small" x="250" y="150" text-anchor="middle">gradients</text>
<line class="axis" x1="{LEFT}" y1="{TOP + HEIGHT}" x2="{LEFT + WIDTH}" y2="{TOP + HEIGHT}"/>
<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{TOP + HEIGHT}"/>
<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT * (1 - scores[-1]) - 10:.0f}" text-anchor="end"
 style="fill:#1a7f37">valid accuracy</text>
<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT * (1 - losses[-1] / max(losses)) - 10:.0f}" text-anchor="end"
 style="fill:#bc4c00">loss</text>
<text class="small" x="{LEFT}" y="{TOP + HEIGHT + 16}">epochs</text>
{draw_curve(score_points, times, "#1a7f37")}
{draw_curve(loss_points, times, "#bc4c00")}
{"".join(lines)}
<text class="mono" x="{LEFT}" y="{TOP + HEIGHT + 56}" opacity="0">{end}{animate_visibility(times[-1:], 0)}</text></svg>
"""


def main() -> None:
    run, out = map(Path, sys.argv[1:])
    out.write_text(draw_svg(*read_run(run)))


if __name__ == "__main__":
    main()
