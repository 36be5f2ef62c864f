"""``fetch``: bring home what a broken-off job has left on its machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.errors import InputError, JobError
from tutorial_lib.tools.cli.app import app


@app.command()
def fetch(run: Annotated[Path, typer.Argument(help="Run folder of a job that was started with --copy_to.")]) -> None:
    """Bring home what a job with --copy_to has left on its machines; every file is verified."""
    from tutorial_lib.cluster.homecoming import LIST, command, fetch_left, read_starts
    from tutorial_lib.job.result import own_run_folder

    run = run.absolute()
    if not (run / LIST).is_file():
        raise InputError(
            f"{run} is not the folder of a run with --copy_to: it has no {LIST}",
            "Give the folder that train, launch or finale named as its --out.",
        )
    with own_run_folder(run):  # a job that runs there brings its results home itself
        if not read_starts(run):
            print(f"{run}: nothing is left to fetch")
            return
        if problems := fetch_left(run, print):
            raise JobError(problems[0], "\n".join([*problems[1:], f"{command(run)}, again, continues"]))
    print(f"everything is in {run}")
