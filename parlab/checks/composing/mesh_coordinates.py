"""Exercise `mesh_coordinates`."""

from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.composing._meshes import MESHES, Mesh, of_all_ranks, places

MISTAKES = Mistakes(
    first_fastest=(
        "the first coordinate changes fastest with the rank. The last one does: begin with the "
        "last dimension"
    ),
    other_order=(
        "the coordinates are right, but in the order {got}. Return them in the mesh's order, "
        "{right}"
    ),
)
USUAL = {"dp": 2, "pp": 2, "tp": 2}
# Meshes, each with a rank that is not in it.
REFUSED = ((USUAL, 8), (USUAL, -1), ({"tp": 3, "dp": 2}, 100), ({"dp": 1}, 1), ({}, 1))


@check_of(MISTAKES, ranks=1)
def mesh_coordinates(check: Check) -> str:
    """Compare the coordinates of all ranks of several meshes, and try ranks outside of them."""
    with check.trial() as trial:
        for mesh in (*MESHES, {}):
            trial.situation = f"mesh {mesh}"
            got = of_all_ranks(trial, mesh, check.function)
            trial.require(
                *(lambda one=one: _form(one) for one in got), lambda: _coordinates(got, mesh)
            )
        trial.situation = ""
        wrong = {f"rank {r} in the mesh {mesh}": (r, dict(mesh)) for mesh, r in REFUSED}
        require_refusals(trial, wrong, "rank")
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
    if got == places(dict(reversed(mesh.items()))):
        return MISTAKES.first_fastest()
    rank = next(rank for rank, one in enumerate(got) if one != right[rank])
    return observed(f"for rank {rank}, it returns {got[rank]}, expected {right[rank]}")
