"""One source for a lab: `solutions/NN_topic.py` becomes the learner's copy and the solutions.

    python -m parlab.authoring            # what `make notebooks` calls
    python -m parlab.authoring --check    # is everything derived? runs nothing

The source is a jupytext percent script. Its cells say in their `# %%` line what they are:

    # %% tags=["exercise"] exercise="ring_reduce_scatter"
    # %% tags=["check"] exercise="ring_reduce_scatter" points=3
    # %% tags=["hidden-check"] exercise="ring_reduce_scatter" points=2
    # %% [markdown] tags=["solution"]

What stands between `# BEGIN SOLUTION` and `# END SOLUTION` in an exercise becomes an error that
names the exercise; hidden checks and `solution` cells are not in the learner's copy at all.
"""

import sys

# nbformat's jsonschema would load a grammar for URLs, which no notebook needs, in a second.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from parlab.authoring.command import build, main  # noqa: E402
from parlab.authoring.problems import AuthorError, Problem  # noqa: E402

__all__ = ["AuthorError", "Problem", "build", "main"]
