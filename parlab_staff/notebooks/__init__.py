"""Derives the learner's copy and the solutions of a lab from `solutions/NN_topic.py`.

    python -m parlab_staff.notebooks            # what `make notebooks` calls
    python -m parlab_staff.notebooks --check    # checks that all is up to date, and runs nothing

The source is a jupytext percent script. The `# %%` line of a cell has its kind, tags, and exercise:

    # %% tags=["exercise"] exercise="ring_reduce_scatter"
    # %% tags=["check"] exercise="ring_reduce_scatter" points=3
    # %% tags=["hidden-check"] exercise="ring_reduce_scatter" points=2
    # %% [markdown] tags=["solution"]

The lines between `# BEGIN SOLUTION` and `# END SOLUTION` in an exercise become an error that names
the exercise. Hidden checks and `solution` cells are not in the learner's copy at all.
"""

import sys

# nbformat's jsonschema would load a grammar for URLs, which no notebook needs, in a second.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from parlab_staff.course.problems import AuthorError, Problem  # noqa: E402
from parlab_staff.notebooks.command import build, main  # noqa: E402

__all__ = ["AuthorError", "Problem", "build", "main"]
