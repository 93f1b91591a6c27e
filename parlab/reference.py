"""The reference solution in place of one exercise, for a learner who wants to go on.

    from parlab.reference import use_reference
    use_reference("ring_reduce_scatter")

It works in the notebook, and in a `%%px` cell too.
"""

import difflib
from pathlib import Path
from typing import Any

from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import ROOT, numbered

# What the references that were put in place have defined, by exercise and name.
_put: dict[str, dict[str, Any]] = {}


class NoReference(ValueError):
    """There is no reference to put in place; the message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: how it was looked up is of no interest.
        return str(self).splitlines()


def use_reference(key: str) -> None:
    """Define what exercise `key` asks for as the reference does, and say so.

    The exercise's cell of the reference runs as if you had typed it: on the ranks where it is a
    `%%px` cell. Within a `%%px` cell, each rank that calls this runs it.

    Raises:
        NoReference: no such exercise; or this copy of the course comes without solutions; or the
            cell failed, since something that it builds on is missing.
    """
    shell = _shell()
    source = _source_of(key)
    first, _, body = source.partition("\n")
    if _is_rank(shell):
        if not first.startswith("%%px"):
            raise NoReference(f"exercise {key} runs in the notebook: call this without %%px")
        source = body
    before = dict(shell.user_ns)
    if not shell.run_cell(source, store_history=False).success:
        raise NoReference(
            f"exercise {key}: the reference did not run; run the lab's cells above it first"
        )
    names = (name for name in shell.user_ns if not name.startswith("_"))
    _put[key] = {
        name: shell.user_ns[name]
        for name in names
        if name not in before or before[name] is not shell.user_ns[name]
    }
    print(
        f"exercise {key}: the reference is in place of your code. "
        "The check now tests the reference, and not your code."
    )


def in_place(key: str) -> bool:
    """Whether what exercise `key` defines here is the reference's, and nobody wrote it anew."""
    return key in _put and all(_shell().user_ns.get(n) is made for n, made in _put[key].items())


def _shell() -> Any:
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise NoReference("use_reference works in a notebook")
    return shell


def _is_rank(shell: Any) -> bool:
    return type(getattr(shell, "kernel", None)).__module__.startswith("ipyparallel.")


def _source_of(key: str) -> str:
    labs = _references()
    for exercises in labs.values():
        if key in exercises:
            return exercises[key]
    if not labs:
        raise NoReference(
            f"exercise {key}: this copy of the course comes without solutions. Ask whoever gave "
            "it to you, or go on: exercises that do not build on this one work without it."
        )
    known = [known for exercises in labs.values() for known in exercises]
    close = difflib.get_close_matches(str(key), known, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    lines = [f"  {lab}: {', '.join(exercises)}" for lab, exercises in labs.items()]
    raise NoReference("\n".join([f"there is no exercise {key!r}.{meant} There are:", *lines]))


def _references() -> dict[str, dict[str, str]]:
    """The exercises' solved cells by lab and key, in the checkout around the notebook or parlab.

    They are read from the executed solutions: that takes no library, and ranks call this too.
    """
    start = Path.cwd()
    for folder in (start, *start.parents, ROOT):
        if paths := numbered(folder / "solutions", ".ipynb"):
            return {path.stem: _exercises(path) for path in paths}
    return {}


def _exercises(path: Path) -> dict[str, str]:
    cells = [cell for cell in read_cells(path) if cell.role == "exercise"]
    return {cell.key: cell.source for cell in cells if cell.key}
