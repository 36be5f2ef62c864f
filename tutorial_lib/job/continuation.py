"""Whether a run may continue: its folder, its checkpoint and its settings are checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.job.result import check_resume_folder, check_run_folder, own_run_folder
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.generations import check_same_settings, read_checkpoint, remove_leftovers


@dataclass(frozen=True)
class Continuation:
    """How a run keeps its state, and whether it continues from it.

    Attributes:
        resume: continue the run in the run folder from its last complete checkpoint.
        every: epochs between two checkpoints.
    """

    resume: bool = False
    every: int = 1

    def open(self, out: Path, config: TrainConfig, description: dict[str, Any]) -> list[dict[str, Any]]:
        """Check the run folder and its checkpoint before anything is started.

        Returns:
            The finished epochs of the checkpoint, one dict each; none for a new run.

        Raises:
            InputError: no checkpoint, two damaged ones, other settings, nothing left to do, or the run is running.
        """
        if not self.resume:
            check_run_folder(out)
            return []
        folder = check_resume_folder(out) / "checkpoint"
        checkpoint = read_checkpoint(folder)
        check_same_settings(checkpoint, description, folder)
        done = len(checkpoint.epochs)
        if config.epochs < done:
            raise InputError(f"--epochs {config.epochs}, and the checkpoint in {folder} already has {done}")
        if config.epochs == done and (out / "result.json").exists():
            raise InputError(
                f"the run in {out} is finished: it has {done} of {done} epochs",
                f"To train on, give more, for example --epochs {done + 10}.",
            )
        with own_run_folder(out):
            remove_leftovers(folder)
        return checkpoint.epochs


def describe(
    config: TrainConfig, dataset: str, fingerprint: str, *, machines: int, trainers: int, partition: str | None
) -> dict[str, Any]:
    """Everything that must be equal for a checkpoint to be continued."""
    return {
        "dataset": dataset,
        "data fingerprint": fingerprint[:16],
        "machines": machines,
        "trainers": trainers,
        "partition": partition,
        **config.to_dict(),
    }


NEW_RUN = Continuation()
