"""The picture of lesson 16: a preempted job, and the losses of an interrupted and an uninterrupted job."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from support.plots.colors import GRAY, INK, LIGHT, SKY
from support.plots.shapes import VERMILION, write
from support.plots.style import LOOKS, figure, legend_above

FILLS = {"RUNNING": SKY, "PENDING": "white"}
SHORT = {"RUNNING": "runs", "PENDING": "waits"}
Seen = Sequence[tuple[float, Mapping[str, str]]]


def spans(seen: Seen, job: str) -> list[tuple[str, float, float]]:
    """Return state, start and end of each period of a job, in seconds since the first observation."""
    zero = seen[0][0]
    periods = []
    for (at, states), (after, _) in zip(seen, [*seen[1:], seen[-1]], strict=True):
        state = states.get(job)
        if state is None:
            continue
        if periods and periods[-1][0] == state:
            periods[-1] = (state, periods[-1][1], after - zero)
        else:
            periods.append((state, at - zero, after - zero))
    return periods


def preempted(seen: Seen, names: Mapping[str, str], losses: Sequence[Sequence[float]], kept: Sequence[int]) -> Figure:
    """Draw the states of jobs over time, and the losses of two jobs, of which the second was interrupted.

    Args:
        seen: times, and the state of each job in Slurm at this time.
        names: names of the jobs, from top to bottom.
        losses: losses of the uninterrupted and of the interrupted job.
        kept: completed epochs of the second job at each of its interruptions.
    """
    fig, (left, right) = figure(10.5, 2.5, 1, 2, width_ratios=[1.6, 1])
    for row, job in enumerate(names):
        for state, begin, end in spans(seen, job):
            if state == "COMPLETED":
                continue
            left.barh(row, end - begin, 0.5, begin, color=FILLS.get(state, LIGHT), edgecolor=INK, linewidth=0.7)
            if end - begin > 0.09 * (seen[-1][0] - seen[0][0]):
                write(left, (begin + end) / 2, row, SHORT.get(state, "ends"))
            elif state == "RUNNING":
                write(left, end, row, " runs", ha="left")
    left.set_yticks(range(len(names)), list(names.values()))
    left.invert_yaxis()
    left.set(xlabel="seconds", xlim=(0, None))
    left.tick_params(axis="y", length=0)
    epochs = range(1, len(losses[0]) + 1)
    right.plot(epochs, losses[0], "-", color=GRAY, label="uninterrupted")
    for number, (begin, end) in enumerate(zip([0, *kept], [*kept, len(epochs)], strict=True)):
        color, marker, _ = LOOKS[number]
        right.plot(epochs[begin:end], losses[1][begin:end], marker, color=color, label=f"start {number}")
    for end in kept:
        right.axvline(end + 0.5, color=VERMILION, lw=0.8, ls="--")
    right.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
    right.locator_params(axis="x", integer=True)
    legend_above(right, 4)
    return fig
