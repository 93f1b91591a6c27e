"""Exercise `mesh_groups`."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import (
    MESHES,
    Mesh,
    mesh_unchanged,
    peers,
)

Groups = list[list[int]]

MISTAKES = Mistakes(
    only_one=(
        "it returns only one group, {got}. Return the groups of all ranks, because every rank has "
        "to call `dist.new_group` for all of them"
    ),
    complement=(
        "the ranks of a group have the same coordinates in {dims}, and differ in the other "
        "dimensions. It should be the other way round"
    ),
    consecutive=(
        "the groups are parts of consecutive ranks. That is right only for the last dimensions of "
        "the mesh, whose coordinates change fastest"
    ),
    repeated=(
        "the group {got} is in the result more than once. Every rank is in exactly one group, so "
        "each group is there once"
    ),
    not_ascending=(
        "the groups have the right ranks, but the ranks of {got} are not ascending. The order of "
        "`dims` does not matter"
    ),
    other_order="the groups are right, but not in the order of their first rank: {got}",
    not_refused="it accepts {what}: raise a ValueError that names the dimension",
)
REFUSED = (  # dims, and the one of them that the mesh lacks
    (("cp",), "cp"),
    (("dp", "cp"), "cp"),
    (("ep", "tp"), "ep"),
)


@check_of(MISTAKES, ranks=1)
def mesh_groups(check: Check) -> str:
    """Compare the groups of all sets of dimensions of several meshes."""
    with check.trial() as trial:
        for mesh in MESHES:
            for count in (*range(1, len(mesh) + 1), 0):
                for dims in combinations(mesh, count):
                    _compare(trial, mesh, tuple(trial.draw.sample(dims, count)))
        for dims in (("dp", "tp"), ("tp", "dp")):
            _compare(trial, MESHES[0], dims)
    mesh = {"dp": 2, "tp": 3}
    for dims, name in REFUSED:
        with check.trial() as trial:
            what, trial.situation = f"the dimension {name!r}", _situation(mesh, dims)
            require_refusal(
                trial,
                lambda dims=dims: check.function(dict(mesh), *dims),
                MISTAKES.not_refused(what=what),
                what=what,
                names=name,
            )
    return "groups along any dimensions, in any order, of meshes of 1 to 5 dimensions"


def _situation(mesh: Mesh, dims: Sequence[str]) -> str:
    return f"mesh {mesh}, " + (f"dims {', '.join(dims)}" if dims else "no dims")


def _compare(trial: Trial, mesh: Mesh, dims: tuple[str, ...]) -> None:
    trial.situation = _situation(mesh, dims)
    given = dict(mesh)
    got = trial.run(given, *dims)
    trial.require(
        lambda: mesh_unchanged(given, mesh),
        lambda: _form(got, _right(mesh, dims)),
        lambda: _groups(got, mesh, dims),
    )


def _right(mesh: Mesh, dims: Sequence[str]) -> Groups:
    return [group for rank, group in enumerate(peers(mesh, dims)) if rank == group[0]]


def _form(got: Any, right: Groups) -> Finding | None:
    if found := has_type(got, list, "a list of groups"):
        return found
    if len(right) > 1 and got in right:
        return MISTAKES.only_one(got=got)
    for group in got:
        if found := has_type(group, list, "a list of ranks", "a group"):
            return found
        for rank in group:
            if found := has_type(rank, int, "an int", "a rank in a group"):
                return found
    return None


def _groups(got: Groups, mesh: Mesh, dims: Sequence[str]) -> Finding | None:
    right = _right(mesh, dims)
    if got == right:
        return None
    if len(right) > 1 and len(got) == 1 and got[0] in right:
        return MISTAKES.only_one(got=got[0])
    for wrong, finding in _variants(mesh, dims):
        if got == wrong:
            return finding
    twice = [group for group in right if got.count(group) > 1]
    if twice and all(group in right for group in got):
        return MISTAKES.repeated(got=twice[0])
    ascending = [sorted(group) for group in got]
    if sorted(ascending) == right and ascending != got:
        return MISTAKES.not_ascending(got=next(g for g in got if g != sorted(g)))
    if sorted(got) == right:
        return MISTAKES.other_order(got=_some(got))
    return observed(f"it returns {_some(got)}, expected {_some(right)}")


def _some(groups: Groups) -> str:
    """Return the first groups as text."""
    return f"{groups[:4]}"[:-1] + (", …]" if len(groups) > 4 else "]")


def _variants(mesh: Mesh, dims: Sequence[str]) -> Iterator[tuple[Groups, Finding]]:
    """Yield the groups that mistakes would give."""
    others = [dim for dim in mesh if dim not in dims]
    written = " and ".join(dims)
    if dims and others:
        yield _right(mesh, others), MISTAKES.complement(dims=written)
    ranks, size = range(math.prod(mesh.values())), math.prod(mesh[dim] for dim in dims)
    parts = [list(ranks[first : first + size]) for first in ranks[::size]]
    yield parts, MISTAKES.consecutive()
