"""Train a model on one or many machines (lesson 10). All servers and ranks of a job run this file.

python train.py --graph_name NAME --part_config FILE --ip_config FILE
"""

import functools
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from dgl.distributed import DistDataLoader

from job import arguments, join_job, leave_job
from node_task import NodeTask
from ranks import weighted_reduce
from seeds import seed_job


def make_steps(ids, batch_size, seed):
    """Return the steps of an epoch, a list of pairs: the seeds of this rank, and the number of seeds of all ranks.

    Both belong to one step. Shuffle ``ids`` with a new ``torch.Generator`` and this seed. All ranks make the same
    number of steps, the smallest one for which no rank has more than ``batch_size`` seeds in a step.
    ``Tensor.tensor_split`` divides the seeds of a rank into parts of nearly equal size. A part is empty if a rank has
    fewer seeds than steps.
    """
    generator = torch.Generator().manual_seed(seed)
    order = ids[torch.randperm(len(ids), generator=generator)]
    count = torch.tensor(-(-len(ids) // batch_size))
    dist.all_reduce(count, dist.ReduceOp.MAX)
    parts = order.tensor_split(int(count))
    sizes = torch.tensor([len(part) for part in parts])
    dist.all_reduce(sizes)
    return list(zip(parts, sizes.tolist()))


def sample_step(sample, parts, numbers):
    """Return the sample of a step. ``numbers`` is a list with the number of the step."""
    return sample(parts[numbers[0]])


def load_samples(sample, steps):
    """Return a ``DistDataLoader`` that yields ``sample(seeds)`` for the steps of ``make_steps``, in their order.

    A sampler process, if the job has one, prepares samples in advance (several would lose the order). DGL can only send
    numbers to it. So the data set is ``torch.arange(number of steps)``, the batch size is 1, and ``collate_fn`` is
    ``functools.partial`` of ``sample_step`` with ``sample`` and this rank's seeds. The loader has no other options.
    """
    parts = [seeds for seeds, _ in steps]
    collate = functools.partial(sample_step, sample, parts)
    return DistDataLoader(torch.arange(len(steps)), 1, collate_fn=collate)


def train_epoch(task, epoch):
    """Train one epoch and return the mean loss over the training seeds of all ranks, a float.

    Each step uses the gradient of the mean loss over the seeds of **all** ranks. DDP divides the sum of the gradients
    by the number of ranks. Therefore multiply ``task.loss(task.read(sample))``, a sum over the seeds of this rank, by
    ``world_size / number of seeds of all ranks`` before ``backward()``. In each step, call ``zero_grad`` of all
    ``task.optimizers`` before ``backward()`` and their ``step`` after it. The model is in training mode. The seed of
    ``make_steps`` is ``1000 * args.seed + epoch``. ``weighted_reduce`` computes the result.
    """
    task.model.train()
    steps = make_steps(task.ids["train"], task.args.batch_size, 1000 * task.args.seed + epoch)
    total = 0.0
    for sample, (_, seeds_of_all) in zip(load_samples(task.sample, steps), steps):
        for optimizer in task.optimizers:
            optimizer.zero_grad()
        loss = task.loss(task.read(sample))
        (loss * dist.get_world_size() / seeds_of_all).backward()
        for optimizer in task.optimizers:
            optimizer.step()
        total += loss.item()
    return weighted_reduce(total, len(task.ids["train"]))


def fit(task):
    """Train up to ``num_epochs`` epochs in total, from the checkpoint if one exists. Return a dict for each epoch."""
    args, epochs = task.args, task.resume()
    for epoch in range(len(epochs), args.num_epochs):
        seed_job(1000 * args.seed + epoch)  # an epoch does not depend on earlier epochs
        start = time.perf_counter()
        loss = train_epoch(task, epoch)
        epochs.append({"epoch": epoch, "loss": loss, "seconds": time.perf_counter() - start})
        if (epoch + 1) % args.eval_every == 0 or epoch + 1 == args.num_epochs:
            epochs[-1].update(task.evaluate())
        task.save(epochs)
        if dist.get_rank() == 0:
            value = epochs[-1].get(f"val_{task.score}", float("nan"))
            seconds = epochs[-1]["seconds"]
            print(f"epoch {epoch}  loss {loss:.4f}  validation {task.score} {value:.4f}  {seconds:.2f} s", flush=True)
    return epochs


def report(task, epochs):
    """Print the test score of the epoch with the best validation score. Write all results to the file ``--out``."""
    best = max(epochs, key=lambda epoch: epoch.get(f"val_{task.score}", -1.0))
    result = {"epochs": epochs, "ranks": dist.get_world_size(), "best_epoch": best["epoch"]}
    result |= {name: best[name] for name in (f"val_{task.score}", f"test_{task.score}")}
    if dist.get_rank() == 0:
        test = best[f"test_{task.score}"]
        print(f"epoch {best['epoch']} has the best validation {task.score}; test {task.score} {test:.4f}", flush=True)
        if task.args.out:
            Path(task.args.out).write_text(json.dumps(result))


def main(make_task=NodeTask, **options):
    """Join the job, train, write the results, and leave. ``options`` are additional options with their defaults."""
    args = arguments(**options).parse_args()
    task = make_task(join_job(args), args)
    report(task, fit(task))
    leave_job()


if __name__ == "__main__":
    main()
