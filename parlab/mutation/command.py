"""`make mutants` and `parlab try KEY --mutants`: tries mutants and says which survive."""

import argparse
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import parlab.mutation
from parlab.mutation import record
from parlab.mutation.lab import Exercise, exercises
from parlab.mutation.mutants import mutants_of
from parlab.mutation.trying import Broken, Tried, try_mutants


def try_one(key: str) -> int:
    """Print the survivors of an exercise; 0 where each has its reason, else 1. Records nothing."""
    return _run([key], keep=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parlab.mutation",
        description=parlab.mutation.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("keys", nargs="*", metavar="KEY", help="exercises; all, without any")
    return _run(parser.parse_args().keys, keep=True)


def _run(keys: list[str], keep: bool) -> int:
    console = Console(stderr=True, highlight=False)
    start = time.monotonic()
    try:
        chosen = exercises(keys)
        tried = _tried(chosen, console, keep)
    except (Broken, ValueError) as error:
        print(f"parlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    scores = {one.key: record.score_of(one, tried[one.key]) for one in chosen}
    found = list(record.unexplained(scores, record.reasons()))
    for key, survivor in found:
        print(f"{key}: {survivor.operator}, accepted by {survivor.accepted_by}")
        print("\n".join(f"    {line}" for line in survivor.change))
    for key, score in scores.items():
        print(
            f"{key}: {score.mutants} mutants, the check rejects {score.rejected}, "
            f"the hidden check {score.rejected_hidden}; {len(score.survivors)} survive one of them"
        )
    minutes = (time.monotonic() - start) / 60
    print(f"{minutes:.1f} minutes; {len(found)} survivors have no reason in tests/mutants/*.toml")
    return 1 if found else 0


def _tried(chosen: list[Exercise], console: Console, keep: bool) -> dict[str, list[Tried]]:
    bar = Progress(
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
    done: dict[str, list[Tried]] = {one.key: [] for one in chosen}
    with bar:
        task = bar.add_task("", total=sum(len(mutants_of(one.cell)) for one in chosen))

        def report(exercise: Exercise, tried: Tried, left: int) -> None:
            done[exercise.key].append(tried)
            bar.update(task, advance=1, description=exercise.key)
            if not left:
                said = done[exercise.key]
                survive = sum(bool(one.accepted_by) for one in said)
                bar.console.print(f"{exercise.key}: {survive} of {len(said)} survive")

        def finished(exercise: Exercise, tried: list[Tried]) -> None:
            if keep:
                record.write({exercise.key: record.score_of(exercise, tried)})

        return try_mutants(chosen, report, finished)
