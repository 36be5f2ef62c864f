"""Texts that are made from templates of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def render_template(template: str, **fields: Any) -> str:
    """Fill a Jinja template, named by its path in the package. In HTML, the fields are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(fields)
