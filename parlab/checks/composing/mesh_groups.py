"""Exercise `mesh_groups`."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import (
    MESHES,
    NOT_SORTED,
    Groups,
    Mesh,
    first_difference,
    groups_along,
    groups_form,
    in_order,
    mesh_unchanged,
)

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
    not_sorted=NOT_SORTED,
)
LACKING = {"dp": 2, "tp": 3}
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
        for dims, name in REFUSED:
            trial.situation = ""
            wrong = {f"{dims} in the mesh {LACKING}": (dict(LACKING), *dims)}
            require_refusals(trial, wrong, name)
    return "groups along any dimensions, in any order, of meshes of 1 to 5 dimensions"


def _compare(trial: Trial, mesh: Mesh, dims: tuple[str, ...]) -> None:
    trial.situation = f"mesh {mesh}, " + (f"dims {', '.join(dims)}" if dims else "no dims")
    given = dict(mesh)
    got = trial.run(given, *dims)
    trial.require(
        lambda: mesh_unchanged(given, mesh),
        lambda: _several(got),
        lambda: groups_form(got, list),
        lambda: _groups(got, mesh, dims),
    )


def _several(got: Any) -> Finding | None:
    is_one = isinstance(got, list) and got and all(isinstance(rank, int) for rank in got)
    return MISTAKES.only_one(got=got) if is_one else None


def _groups(got: Groups, mesh: Mesh, dims: Sequence[str]) -> Finding | None:
    right = groups_along(mesh, dims)
    if got == right:
        return None
    if in_order(got) == right:
        return MISTAKES.not_sorted()
    if len(got) == 1 and got[0] in right:
        return MISTAKES.only_one(got=got[0])
    others = [dim for dim in mesh if dim not in dims]
    if dims and others and got == groups_along(mesh, others):
        return MISTAKES.complement(dims=" and ".join(dims))
    ranks, size = list(range(math.prod(mesh.values()))), len(right[0])
    if got == [ranks[first : first + size] for first in ranks[::size]]:
        return MISTAKES.consecutive()
    return first_difference(got, right)
