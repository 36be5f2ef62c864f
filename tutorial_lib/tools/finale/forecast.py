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
from tutorial_lib.tools.finale.settings import FinaleSettings

PROCESS, TRAINER = 0.6e9, 1.4e9  # bytes: libraries of a process; of a trainer, with batches and the rows that it keeps
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
        there: bytes on each machine that is reached over ssh; 0 without such.
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
        source, layout, config = settings.source, settings.layout, settings.config
        if source.name not in ("ogbn-products", "synthetic-products"):
            return None
        scale = source.scale if source.name == "synthetic-products" else 1.0
        whole = SPECS["ogbn-products"]
        nodes, edges = round(scale * whole.nodes), round(scale * whole.directed_edges)
        machines, here = len(layout.cluster().machines), len(os.sched_getaffinity(0))
        memory, machine, there = PROCESS + CUTTING * edges, PROCESS + TRAINER * layout.trainers, 0.0
        if layout.real is not None:
            there = machine + TRAINING * edges / machines
        else:  # all machines are this computer; those of the scaling runs have a small graph
            memory = max(memory, machines * machine + TRAINING * edges, max(settings.scaling, default=0) * machine)
        reach = sum(itertools.accumulate(config.fanouts, operator.mul)) / SEED_REACH
        computing = EVALUATING * edges + config.epochs * SEEDS * nodes * SEED * max(reach, 0.2)
        workers = machines if layout.real else min(machines * layout.trainers, here)
        seconds = PREPARING * edges + computing * CORES / workers + JOB * (1 + len(settings.scaling))
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
