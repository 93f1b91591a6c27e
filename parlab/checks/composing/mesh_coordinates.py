"""Exercise `mesh_coordinates`."""

import math
from collections.abc import Iterator
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.composing._meshes import (
    MESHES,
    Mesh,
    mesh_unchanged,
    places,
)

MISTAKES = Mistakes(
    first_fastest=(
        "the first coordinate changes fastest with the rank. The last one does: begin with the "
        "last dimension"
    ),
    other_order=(
        "the coordinates are right, but in the order {got}. Return them in the mesh's order, "
        "{right}"
    ),
    not_divided=(
        "each coordinate is the remainder of the rank itself. First divide the rank by the sizes "
        "of all later dimensions"
    ),
    no_remainder=(
        "the coordinate {dim!r} of rank {rank} is {got}, and the dimension has size {size}. Take "
        "the remainder"
    ),
    not_refused="it accepts {what}: raise a ValueError that names `rank`",
)
REFUSED = (  # meshes, and a rank that is not in each
    ({"dp": 2, "pp": 2, "tp": 2}, 8),
    ({"dp": 2, "pp": 2, "tp": 2}, -1),
    ({"tp": 3, "dp": 2}, 100),
    ({"dp": 1}, 1),
    ({}, 1),
)


@check_of(MISTAKES, ranks=1)
def mesh_coordinates(check: Check) -> str:
    """Compare the coordinates of all ranks of several meshes, and try ranks outside of them."""
    with check.trial() as trial:
        for mesh in (*MESHES, {}):
            trial.situation = f"mesh {mesh}"
            meshes = [dict(mesh) for _ in range(math.prod(mesh.values()))]

            def of_all_ranks(meshes: list[Mesh] = meshes) -> list[Any]:
                return [check.function(rank, of) for rank, of in enumerate(meshes)]

            got = trial.run_function(of_all_ranks)
            trial.require(
                *(lambda of=of, mesh=mesh: mesh_unchanged(of, mesh) for of in meshes),
                *(lambda one=one: _form(one) for one in got or ()),
                lambda got=got, mesh=mesh: _coordinates(got, mesh),
            )
    for mesh, rank in REFUSED:
        with check.trial() as trial:
            what, trial.situation = f"rank {rank}", f"mesh {mesh}"
            require_refusal(
                trial,
                lambda rank=rank, mesh=mesh: check.function(rank, dict(mesh)),
                MISTAKES.not_refused(what=what),
                what=what,
                names="rank",
            )
    return "the coordinates of all ranks in meshes of 0 to 5 dimensions; other ranks are refused"


def _form(got: Any) -> Finding | None:
    if found := has_type(got, dict, "a dict"):
        return found
    kinds = (has_type(c, int, "an int", f"the coordinate {dim!r}") for dim, c in got.items())
    return next((found for found in kinds if found), None)


def _coordinates(got: list[dict[str, int]], mesh: Mesh) -> Finding | None:
    right = places(mesh)
    if got == right:
        orders = [list(one) for one in got if list(one) != list(mesh)]
        return MISTAKES.other_order(got=orders[0], right=list(mesh)) if orders else None
    for wrong, finding in _variants(got, right, mesh):
        if got == wrong:
            return finding
    rank = next(rank for rank, one in enumerate(got) if one != right[rank])
    return observed(f"for rank {rank}, it returns {got[rank]}, expected {right[rank]}")


def _variants(
    got: list[dict[str, int]], right: list[dict[str, int]], mesh: Mesh
) -> Iterator[tuple[list[dict[str, int]], Finding]]:
    """Yield the coordinates that mistakes would give."""
    ranks, turned = range(len(right)), dict(reversed(mesh.items()))
    yield places(turned), MISTAKES.first_fastest()
    remainders = [{dim: rank % size for dim, size in mesh.items()} for rank in ranks]
    yield remainders, MISTAKES.not_divided()
    quotients = []
    for rank in ranks:
        inner = len(right)
        quotients.append({dim: rank // (inner := inner // size) for dim, size in mesh.items()})
    for rank, one in enumerate(quotients):
        for dim, size in mesh.items():
            if one[dim] >= size:
                text = {"dim": dim, "rank": rank, "got": one[dim], "size": size}
                yield quotients, MISTAKES.no_remainder(**text)
                return
