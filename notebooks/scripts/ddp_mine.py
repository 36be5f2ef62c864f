from pathlib import Path


def mine(rank):
    Path("scripts/out").joinpath(f"mine-{rank}").write_text(f"I am rank {rank}")
