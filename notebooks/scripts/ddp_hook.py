"""Replace DDP's all-reduce by a hook that does the same and records times. The model has four layers of 4 MiB."""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from leave import leave

WIDTH = 1024


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ddp = DistributedDataParallel(model, bucket_cap_mb=4)
    notes = []

    def note(what, of):
        notes.append((time.perf_counter(), what, of))

    def average(_state, bucket):
        """Divide a bucket and start its sum, as DDP does. The sum continues while backward() computes."""
        inside = " ".join(names[id(parameter)] for parameter in bucket.parameters())
        note("starts", inside)
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)

        def finish(future):
            note("done", inside)
            return future.value()[0]

        return work.get_future().then(finish)

    ddp.register_comm_hook(None, average)
    for parameter in model.parameters():
        parameter.register_hook(lambda _gradient, name=names[id(parameter)]: note("gradient", name))
    x = torch.randn(512, WIDTH)
    steps = []
    for _step in range(3):
        loss = ddp(x).square().mean()
        dist.barrier()
        notes.clear()
        note("begin", "")
        loss.backward()
        note("end", "")
        steps.append([(seconds - notes[0][0], what, of) for seconds, what, of in notes])
    if dist.get_rank() == 0:
        Path(__file__).with_name("out").mkdir(exist_ok=True)
        Path(__file__).with_name("out").joinpath("hook.json").write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
    leave()
