"""Train like embeddings.py, and kill rank 1 in the middle of an epoch (lesson 14)."""

import os
import signal

import torch.distributed as dist

from embeddings import EmbeddingTask
from train import main


class KilledTask(EmbeddingTask):
    steps = 0

    def read(self, sample):
        self.steps += 1
        if self.steps == 20 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(sample)


if __name__ == "__main__":
    main(KilledTask, width=64, rows_lr=0.03)
