"""Exercise `grid_communicators`."""

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial

NAMES = ("row", "column")

MISTAKES = Mistakes(
    same_twice=(
        "both results are the same communicator, and the caller frees each of them. Call `Split` "
        "once for the row and once for the column"
    ),
    not_new=(
        "the {name} communicator is {got}, and the caller frees it. Make a new one with `Split`, "
        "even if it has all ranks or one"
    ),
    swapped=(
        "the first communicator has the ranks of the column, and the second those of the row. "
        "Return the row's first. Its color is the row: rank r is in row r // columns"
    ),
    all_ranks=(
        "the {name} communicator has all ranks of `comm`. Pass a different color to `Split` in "
        "each {name}"
    ),
    other_order=(
        "the {name} communicator has the right ranks in the order {got}, expected {right}. `Split` "
        "numbers ranks from the smallest key to the largest"
    ),
    not_freed=(
        "the function makes communicators that it neither returns nor frees: {got}. Free them "
        "before it returns"
    ),
)


@check_of(MISTAKES)
def grid_communicators(check: Check) -> str:
    """Check both communicators for all grids, on 1, 2, … ranks."""
    for trial in check.trials():
        columns = [n for n in range(trial.size, 0, -1) if trial.size % n == 0]
        grids = {f"a grid of {trial.size // n} × {n}": (trial.size // n, n) for n in columns}
        for _, grid in trial.cases(grids):
            got = trial.run(*grid, trial.comm)
            trial.require(
                lambda: two_communicators(got),
                lambda: new_ones(got, trial),
                lambda: right_ranks(got, grid[1], trial),
                lambda: others_freed(got, made_from(trial.comm)),
            )
            for comm in got or ():
                comm.Free()
    return (
        "every rank has a communicator for its row and one for its column, in order, for all grids "
        f"of 1 to {check.world_size} ranks"
    )


def two_communicators(got: Any) -> Finding | None:
    if got is None:
        return COMMON.returns_none()
    if not isinstance(got, tuple | list) or len(got) != 2:
        return observed("it does not return a pair, expected the communicators (row, column)")
    for name, comm in zip(NAMES, got, strict=True):
        if not isinstance(comm, MPI.Comm):
            return observed(f"the {name} communicator is {comm!r}, expected a communicator")
        if comm == MPI.COMM_NULL:
            return observed(f"the {name} communicator is MPI.COMM_NULL, or was freed")
    return None


def new_ones(got: Sequence[MPI.Comm], trial: Trial) -> Finding | None:
    # To free MPI's own communicator would crash the ranks.
    old = {"`comm` itself": trial.comm, "`MPI.COMM_SELF`": MPI.COMM_SELF}
    for name, comm in zip(NAMES, got, strict=True):
        for known, other in old.items():
            if MPI.Comm.Compare(comm, other) == MPI.IDENT:
                return MISTAKES.not_new(name=name, got=known)
    return MISTAKES.same_twice() if MPI.Comm.Compare(*got) == MPI.IDENT else None


def right_ranks(got: Sequence[MPI.Comm], columns: int, trial: Trial) -> Finding | None:
    """Compare the ranks of both communicators, by their numbers in the trial."""
    everyone = list(range(trial.size))
    row, column = trial.rank - trial.rank % columns, trial.rank % columns
    right = [everyone[row : row + columns], everyone[column::columns]]
    ranks = [ranks_in(comm, trial) for comm in got]
    if ranks == right[::-1] != right:
        return MISTAKES.swapped()
    for name, one, other in zip(NAMES, ranks, right, strict=True):
        if sorted(one) == other != one:
            return MISTAKES.other_order(name=name, got=one, right=other)
        if one == everyone != other:
            return MISTAKES.all_ranks(name=name)
        if one != other:
            return observed(f"the {name} communicator has ranks {one}, expected {other}")
    return None


def ranks_in(comm: MPI.Comm, trial: Trial) -> list[int]:
    group = comm.Get_group()
    return list(group.Translate_ranks(range(group.size), trial.comm.Get_group()))


def made_from(comm: Any) -> list[MPI.Comm]:
    """Return the watched communicators that were made from `comm`, directly or indirectly."""
    made = getattr(comm, "_made", [])
    return [*made, *(one for other in made for one in made_from(other))]


def others_freed(got: Sequence[MPI.Comm], made: list[MPI.Comm]) -> Finding | None:
    returned = [MPI.COMM_NULL.handle, *(comm.handle for comm in got)]
    kept = sum(comm.handle not in returned for comm in made)
    return MISTAKES.not_freed(got=kept) if kept else None
