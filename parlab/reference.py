"""Runs the reference solution of an exercise, for a learner who wants to continue with the lab.

    from parlab.reference import use_reference
    use_reference("ring_reduce_scatter")

It works in the notebook and in a `%%px` cell.
"""

import difflib
from pathlib import Path
from typing import Any

from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import ROOT, numbered

# The objects that references have defined, by exercise and name.
_put: dict[str, dict[str, Any]] = {}


class NoReference(ValueError):
    """No reference can be used. The message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this. The frames inside parlab would only distract from the message.
        return str(self).splitlines()


def use_reference(key: str) -> None:
    """Run the reference solution of exercise `key`, and print that it replaces your code.

    The reference's cell runs as if you had typed it. If it is a `%%px` cell, it runs on the ranks.
    Within a `%%px` cell, each rank that calls this function runs it.

    Raises:
        NoReference: there is no such exercise, this copy of the course has no solutions, the cell
            failed because something that it needs is missing, or `%%px` is not right for it.
    """
    shell = _shell()
    source = _source_of(key)
    first, _, body = source.partition("\n")
    if _is_rank(shell):
        if not first.startswith("%%px"):
            raise NoReference(f"exercise {key} runs in the notebook: call this without %%px")
        source = body
    elif first.startswith("%%px"):
        # The ranks call this function, so that their checks know that the learner did not do it.
        call = f"from parlab import reference as _reference\n_reference.use_reference({key!r})"
        _run(shell, key, f"{first}\n{call}")
        return
    before = dict(shell.user_ns)
    _run(shell, key, source)
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


def _run(shell: Any, key: str, source: str) -> None:
    if not shell.run_cell(source, store_history=False).success:
        raise NoReference(
            f"exercise {key}: the reference did not run; run the lab's cells above it first"
        )


def in_place(key: str) -> bool:
    """Return True if the reference defined the names of exercise `key`, and nothing has since."""
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
            f"exercise {key}: this copy of the course comes without solutions. Ask your "
            "instructor for them, or continue with exercises that do not build on this one."
        )
    known = [known for exercises in labs.values() for known in exercises]
    close = difflib.get_close_matches(str(key), known, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    lines = [f"  {lab}: {', '.join(exercises)}" for lab, exercises in labs.items()]
    raise NoReference("\n".join([f"there is no exercise {key!r}.{meant} There are:", *lines]))


def _references() -> dict[str, dict[str, str]]:
    """Return the exercises' solved cells, by lab and key, from the course around the notebook.

    If the notebook is outside a course, use parlab's own. The cells are read from the executed
    solutions, which needs no library, because ranks call this, too.
    """
    start = Path.cwd()
    for folder in (start, *start.parents, ROOT):
        if paths := numbered(folder / "solutions", ".ipynb"):
            return {path.stem: _exercises(path) for path in paths}
    return {}


def _exercises(path: Path) -> dict[str, str]:
    cells = [cell for cell in read_cells(path) if cell.role == "exercise"]
    return {cell.key: cell.source for cell in cells if cell.key}
