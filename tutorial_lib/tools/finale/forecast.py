"""What a finale will take, said before it starts: memory and time; and a question before it takes much.

``tools/plan.py`` estimates the training. The steps around it are straight lines through what was measured on two
cores (``benchmarks/RESULTS.md``, the finale at full size). It may be half or twice as much: it tells minutes from
hours, and what fits from what does not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tutorial_lib.cluster.emulated import parse_wire
from tutorial_lib.errors import InputError, ask
from tutorial_lib.job.display import human_bytes
from tutorial_lib.partition.memory import memory_for_us
from tutorial_lib.tools.finale.settings import SCALING_EPOCHS, SCALING_SCALE, FinaleSettings
from tutorial_lib.tools.plan import COMMAND, Job, estimate, sizes_of

CUTTING = 62  # bytes per edge of the graph, of this process when it cuts it
PREPARING, EVALUATING = 1.4e-6, 1.8e-6  # seconds per edge: made, cut, checked, loaded; all neighbours of all nodes
CORES = 2  # that both were measured on
SCORING = 0.4  # a batch of a validation, beside a step
JOB = 20.0  # seconds until a job trains, and after it
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
        generated, sizes = source.name == "synthetic-products", sizes_of(source)
        nodes, edges = sizes["nodes"], sizes["edges"]
        part = min(1.0, SCALING_SCALE / source.scale) if generated else 1.0  # of the graph, in the scaling runs
        jobs = [(len(layout.cluster().machines), 1.0, settings.config.epochs)]
        jobs += [(machines, part, SCALING_EPOCHS) for machines in settings.scaling]
        wire = parse_wire(layout.wire)
        memory, there, seconds = COMMAND + CUTTING * edges, 0.0, 0.0
        for machines, of_graph, epochs in jobs:
            counts = {name: round(of_graph * sizes[name]) for name in ("nodes", "edges", "train", "val")}
            job = Job(
                **{**sizes, **counts},
                machines=machines,
                trainers=layout.trainers,
                servers=layout.servers,
                config=settings.config,
                wire=None if wire is None else 8.0 * wire,
                together=not layout.elsewhere,
                cores=len(os.sched_getaffinity(0)),
            )
            found = estimate(job)
            workers = min(job.world, job.cores) if job.together else machines
            seconds += JOB + epochs * found.epoch * (1 + SCORING * job.val / job.train)
            seconds += (PREPARING + EVALUATING * CORES / workers) * job.edges
            if not layout.elsewhere:
                memory = max(memory, found.total)
            else:
                there = max(there, found.machine)
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
    answer = ask("This is large. Start it?")
    if answer is None:
        raise InputError(f"this is large, and nobody can be asked. {forecast}", remedy)
    if not answer:
        raise InputError("not started", remedy)
