"""The templates of pages: HTML that needs no other file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fairseq_aggdec.report.colours import variables


@cache
def templates() -> Any:
    """Jinja's environment: all text that goes into a page is escaped; a name that a template lacks is an error."""
    import jinja2  # of the extras `report` and `serve`

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals |= {"light": variables(dark=False), "dark": variables(dark=True)}
    return made
