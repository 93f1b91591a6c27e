"""The templates of the pages. They escape students' text, so that it is never HTML."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from parlab_staff.gradebook.entries import points_of
from parlab_staff.gradebook.reports.text import one_line, plain, shown
from parlab_staff.gradebook.reports.words import (
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
        loader=PackageLoader("parlab_staff.gradebook.reports"),
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
    """Return a value without control characters; jinja2 escapes it after this."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page(template: str, **values: Any) -> str:
    """Return the HTML of a template in templates/."""
    return _environment().get_template(template).render(values)
