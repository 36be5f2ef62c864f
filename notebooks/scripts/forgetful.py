"""Resume a training without parts of its state, and write all losses to --out: forgetful.py OPTIONS (lesson 11)."""

import json
from pathlib import Path

import train
from job import arguments, join_job, leave_job
from node_task import NodeTask
from seeds import seed_job


def losses(g, args, num_epochs, without=""):
    """Train up to this number of epochs, from the checkpoint if one exists. ``without`` names a part to leave out."""
    args.num_epochs = num_epochs
    task = NodeTask(g, args)
    if without == "Adam's state":
        task.optimizers[0].load_state_dict = lambda _state: None
    train.seed_job = (lambda _seed: None) if without == "seed_job" else seed_job
    return [epoch["loss"] for epoch in train.fit(task)]


if __name__ == "__main__":
    args = arguments().parse_args()
    g, path, found = join_job(args), Path(args.checkpoint), {}
    for without in ("", "Adam's state", "seed_job"):
        path.unlink(missing_ok=True)
        losses(g, args, 3)
        found[f"without {without}" if without else "everything"] = losses(g, args, 6, without)
    args.checkpoint = ""
    found["undisturbed"] = losses(g, args, 6)
    Path(args.out).write_text(json.dumps(found))
    leave_job()
