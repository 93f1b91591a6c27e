"""`parlab notebooks`: derive the labs and solutions, or check that they are derived."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from parlab.runtime.paths import ROOT

_DESCRIPTION = """\
Derive labs/NN_topic.ipynb (with stubs) and solutions/NN_topic.ipynb (executed) from
solutions/NN_topic.py. A lab runs again if its code or the package changed. To
run one again anyway, remove its solutions/NN_topic.ipynb first.
"""


def build(
    labs: Sequence[str] = (),
    *,
    check: bool = False,
    force: bool = False,
    execute: bool = True,
    root: Path = ROOT,
) -> int:
    """Derive the labs with these names, or all. Return 0 on success, and 1 otherwise.

    Args:
        check: change nothing; report which files differ from what their source produces.
        force: overwrite notebooks that someone edited.
        execute: False to run nothing. Solutions whose code has changed then stay out of date.
        root: the checkout.

    Problems are printed, one line each. Raises ValueError for a name that matches no lab.
    """
    # Imported here, so that `--help` and `parlab` itself do not wait for jupytext.
    from parlab_staff.course.checkout import Course, examine, select
    from parlab_staff.course.problems import AuthorError
    from parlab_staff.notebooks.build import Deriver, differences, print_problems

    course = Course(root.resolve())
    every = course.read()
    selected = select(every, list(labs))
    orphans = [] if labs else course.orphans(every)
    for path in orphans:
        print(f"{course.shown(path)}: has no source {path.stem}.py in solutions/; remove it")
    try:
        examine(course, every, selected)
        if check:
            found = [line for lab in selected for line in differences(course, lab)]
            print("\n".join(found) or f"{len(selected)} labs match their sources")
            return 1 if found or orphans else 0
        deriver = Deriver(course, force=force, run=execute)
        results = [deriver.derive_lab(lab) for lab in selected]
        results += [deriver.derive_solution(lab) for lab in selected]
    except AuthorError as error:
        print_problems(error, course)
        return 1
    return 0 if all(results) and not orphans else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code: 0, 1 (see `build`), or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="parlab notebooks", description=_DESCRIPTION)
    parser.add_argument("labs", nargs="*", metavar="LAB", help="such as 01_mpi; default: all labs")
    parser.add_argument("--check", action="store_true", help="only report what is not up to date")
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite notebooks that someone edited",
    )
    parser.add_argument("--no-execute", action="store_true", help="do not run the solutions")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    args = parser.parse_args(argv)
    try:
        return build(
            args.labs,
            check=args.check,
            force=args.force,
            execute=not args.no_execute,
            root=args.root,
        )
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("\nstopped; what was written before is complete")
        return 130
