"""`make mutants` and `parlab try KEY --mutants`: try mutants and report which survive."""

import argparse
import subprocess
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import parlab_staff.mutants
from parlab.runtime.paths import ROOT
from parlab_staff.mutants import record
from parlab_staff.mutants.generate import mutants_of
from parlab_staff.mutants.run import Broken, Tried, try_mutants
from parlab_staff.mutants.target import Target, targets
from parlab_staff.ranks import RanksGone


def try_one(key: str) -> int:
    """Print the survivors of an exercise, and record nothing. Return 0 if each has a reason."""
    return _run([key], keep=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parlab_staff.mutants",
        description=parlab_staff.mutants.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("keys", nargs="*", metavar="KEY", help="exercises; default: all")
    parser.add_argument(
        "--changed",
        metavar="COMMIT",
        help="only exercises whose lab or check differs from this commit",
    )
    options = parser.parse_args()
    keys = options.keys
    if options.changed:
        if keys:
            parser.error("give exercises or --changed, not both")
        try:
            keys = changed_since(options.changed)
        except subprocess.CalledProcessError:
            parser.error(f"git cannot compare with {options.changed!r} (see above)")
        if not keys:
            print(f"no exercise has changed since {options.changed}")
            return 0
    return _run(keys, keep=True)


def changed_since(commit: str) -> list[str]:
    """Return the exercises whose lab, check, or shared code of checks differs from a commit.

    Raises CalledProcessError if git does not know the commit.
    """
    command = ["git", "diff", "--name-only", commit, "--", "parlab/checks", "solutions/*.py"]
    ran = subprocess.run(command, cwd=ROOT, encoding="utf-8", stdout=subprocess.PIPE, check=True)
    return [one.key for one in targets() if _depends_on(one, set(ran.stdout.split()))]


def _depends_on(target: Target, changed: set[str]) -> bool:
    topic = f"parlab/checks/{target.exercise.lab.topic}"
    shared = any(path.startswith((f"{topic}/_", "parlab/checks/base/")) for path in changed)
    own = {f"solutions/{target.exercise.lab.name}.py", f"{topic}/{target.key}.py"}
    return shared or bool(own & changed)


def _run(keys: list[str], keep: bool) -> int:
    console = Console(stderr=True, highlight=False)
    start = time.monotonic()
    try:
        chosen = targets(keys)
        tried = _try_all(chosen, console, keep)
    except (Broken, RanksGone, ValueError) as error:
        print(f"parlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    survivors = {one.key: record.survivors_of(tried[one.key]) for one in chosen}
    found = list(record.unexplained(survivors, record.reasons()))
    for key, survivor in found:
        print(f"{key}: {survivor.operator}, accepted by {survivor.accepted_by}")
        print("\n".join(f"    {line}" for line in survivor.change))
    for one in chosen:
        score = record.score_of(tried[one.key])
        print(
            f"{one.key}: {score.mutants} mutants; the check rejects {score.rejected}, the hidden "
            f"check {score.rejected_hidden}; {len(survivors[one.key])} survive one of them"
        )
    minutes = (time.monotonic() - start) / 60
    print(f"{minutes:.1f} minutes; {len(found)} survivors have no reason in tests/mutants/*.toml")
    return 1 if found else 0


def _try_all(chosen: list[Target], console: Console, keep: bool) -> dict[str, list[Tried]]:
    bar = Progress(
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
    tried_so_far: dict[str, list[Tried]] = {one.key: [] for one in chosen}
    with bar:
        task = bar.add_task("", total=sum(len(mutants_of(one.exercise.cell)) for one in chosen))

        def report(target: Target, tried: Tried, left: int) -> None:
            tried_so_far[target.key].append(tried)
            bar.update(task, advance=1, description=target.key)
            if not left:
                of_target = tried_so_far[target.key]
                survive = sum(bool(one.accepted_by) for one in of_target)
                bar.console.print(f"{target.key}: {survive} of {len(of_target)} survive")

        def finished(target: Target, tried: list[Tried]) -> None:
            if keep:
                record.write({target.key: record.score_of(tried)})

        return try_mutants(chosen, report, finished)
