"""The Typer application that every module of this package adds its commands to."""

from __future__ import annotations

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Distributed GNN training with DGL: on emulated machines on this computer, or on real ones.",
)
