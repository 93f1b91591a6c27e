"""The templates of the pages, set up so that no text of a student can become anything else."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from parlab.gradebook.entries import points_of
from parlab.gradebook.reports.text import one_line, plain, shown
from parlab.gradebook.reports.words import (
    OF_EXERCISE,
    OF_SUBMISSION,
    SIGNS,
    TONES,
    moment,
    number,
    points_text,
)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("parlab.gradebook.reports"),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "one_line": one_line,
        "number": number,
        "moment": moment,
    }
    environment.globals |= {
        "id": id,
        "SIGNS": SIGNS,
        "TONES": TONES,
        "OF_EXERCISE": OF_EXERCISE,
        "OF_SUBMISSION": OF_SUBMISSION,
        "points_of": points_of,
        "points_text": points_text,
    }
    return environment


def _harmless(value: Any) -> Any:
    """Every value on its way into a page; jinja2 escapes it after this."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page(template: str, **values: Any) -> str:
    """The HTML of a template in templates/."""
    return _environment().get_template(template).render(values)
