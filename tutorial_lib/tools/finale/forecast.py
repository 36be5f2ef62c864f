"""What a finale will take, said before it starts: memory and time; and a question before it takes much.

Straight lines through what was measured on two cores with GraphSAGE 3 x 256 (``benchmarks/RESULTS.md``, growth and the
finale at full size). It may be half or twice as much: it tells minutes from hours, and what fits from what does not.
"""

from __future__ import annotations

import itertools
import operator
import os
import sys
from dataclasses import dataclass

from tutorial_lib.data.ogb import SPECS
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import human_bytes
from tutorial_lib.partition.memory import memory_for_us
from tutorial_lib.tools.finale.settings import SCALING_EPOCHS, SCALING_SCALE, FinaleSettings

PROCESS, TRAINER = 0.5e9, 0.6e9  # bytes: this process or a server, with its libraries; a trainer with its own
BATCHES, REACHED = 0.8e9, 245_000  # bytes of a trainer's batches and kept rows where a graph has so many nodes or more
CUTTING, TRAINING = 62, 107  # bytes per edge of the graph: this process when it cuts it; servers and trainers together
PREPARING, EVALUATING = 1.4e-6, 1.8e-6  # seconds per edge: made, cut, checked, loaded; all neighbours of all nodes
SEED, SEED_REACH = 0.3e-3, 915  # seconds for a seed node, with 15 + 15 * 10 + 15 * 10 * 5 neighbours
SEEDS = (196_615 + 39_323) / 2_449_029  # share of the nodes that are for training and validation
JOB = 20.0  # seconds until a job trains, and after it
CORES = 2  # that all this was measured on
LONG = 20 * 60.0


@dataclass(frozen=True)
class Forecast:
    """Of one finale.

    Attributes:
        nodes, edges: of the graph, edges in both directions.
        memory: bytes on this computer when most is used, all processes together.
        limit: bytes that there are.
        there: bytes on each machine that is another computer; 0 without such.
        seconds: for all steps.
    """

    nodes: int
    edges: int
    memory: float
    limit: float
    there: float
    seconds: float

    @classmethod
    def of(cls, settings: FinaleSettings) -> Forecast | None:
        """None for a graph whose size is known only when it is loaded: all but ogbn-products and its imitation."""
        source, layout = settings.source, settings.layout
        if source.name not in ("ogbn-products", "synthetic-products"):
            return None
        generated = source.name == "synthetic-products"
        scale, whole = source.scale if generated else 1.0, SPECS["ogbn-products"]
        nodes, edges = round(scale * whole.nodes), round(scale * whole.directed_edges)
        part = min(1.0, SCALING_SCALE / scale) if generated else 1.0  # of the graph, in the scaling runs
        jobs = [(len(layout.cluster().machines), 1.0, settings.config.epochs)]
        jobs += [(machines, part, SCALING_EPOCHS) for machines in settings.scaling]
        memory, there, seconds = PROCESS + CUTTING * edges, 0.0, 0.0
        for machines, of_graph, epochs in jobs:
            needed, takes = _job(settings, machines, of_graph * nodes, of_graph * edges, epochs)
            seconds += takes
            if not layout.elsewhere:
                memory = max(memory, PROCESS + needed)
            else:
                there = max(there, needed / machines)
        return cls(nodes, edges, memory, memory_for_us(), there, seconds)

    @property
    def large(self) -> bool:
        """Whether somebody should be asked first."""
        return self.memory > self.limit or self.seconds > LONG

    def __str__(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        memory = f"about {human_bytes(int(self.memory))} of memory here, of {human_bytes(int(self.limit))}"
        memory += f", and {human_bytes(int(self.there))} on each machine" if self.there else ""
        size = f"{self.nodes:,} nodes, {self.edges:,} edges"
        return f"forecast: {size}; {memory}; about {minutes} min (it may be half or twice as much)"


def _job(settings: FinaleSettings, machines: int, nodes: float, edges: float, epochs: int) -> tuple[float, float]:
    """Bytes on all machines together, and seconds, of one training."""
    trainers, real = settings.layout.trainers, settings.layout.elsewhere
    machine = PROCESS + trainers * (TRAINER + BATCHES * min(1.0, nodes / REACHED))
    fanouts = [edges / nodes if fanout == -1 else fanout for fanout in settings.config.fanouts]  # -1: all neighbours
    reach = max(sum(itertools.accumulate(fanouts, operator.mul)) / SEED_REACH, 0.2)
    computing = EVALUATING * edges + epochs * SEEDS * nodes * SEED * reach
    workers = machines if real else min(machines * trainers, len(os.sched_getaffinity(0)))
    return machines * machine + TRAINING * edges, JOB + PREPARING * edges + computing * CORES / workers


def agree(forecast: Forecast) -> None:
    """Ask the person at the terminal whether to start something large.

    Raises:
        InputError: the answer is no, or nobody can be asked.
    """
    if not forecast.large:
        return
    remedy = "To start it all the same: --yes. Smaller: --scale 0.1, --epochs 3, or more machines."
    in_notebook = "JPY_PARENT_PID" in os.environ  # there, output goes to a terminal, and nobody is at its keyboard
    if in_notebook or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError(f"this is large, and nobody can be asked. {forecast}", remedy)
    try:
        answer = input("This is large. Start it? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InputError("not started", remedy)
