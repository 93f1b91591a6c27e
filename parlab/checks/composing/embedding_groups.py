"""Exercise `embedding_groups`."""

from itertools import permutations

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import (
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
    whole_pipelines=(
        "the groups have all stages. Only the first and the last stage have the embedding"
    ),
    order_assumed=(
        "these are the groups of the mesh {assumed}. The dimensions can have any order: the last "
        "one of `mesh` changes fastest with the rank"
    ),
    not_sorted=NOT_SORTED,
)
MESHES = (
    {"dp": 2, "pp": 2, "tp": 2},
    {"dp": 2, "pp": 4, "tp": 3},
    {"pp": 3, "dp": 2, "tp": 2},
    {"tp": 3, "dp": 2, "pp": 5},
    {"tp": 2, "pp": 2, "dp": 3},
    {"cp": 2, "tp": 1, "pp": 3, "dp": 2},
    {"dp": 3, "pp": 1, "tp": 2},
    {"pp": 2},
    {"pp": 6},
    {"pp": 1},
    {"nodes": 11, "pp": 2},
)
REFUSED = ({"dp": 2, "tp": 2}, {}, {"PP": 2, "dp": 2})


@check_of(MISTAKES, ranks=1)
def embedding_groups(check: Check) -> str:
    """Compare with groups that are found by coordinates, for many meshes."""
    with check.trial() as trial:
        for mesh in MESHES:
            _compare(trial, dict(mesh))
        trial.situation = ""
        require_refusals(trial, {f"the mesh {mesh}": (dict(mesh),) for mesh in REFUSED}, "pp")
    return "the ranks of the first and the last stage in meshes of any order, with 1 to 6 stages"


def _compare(trial: Trial, mesh: dict[str, int]) -> None:
    trial.situation = f"the mesh is {mesh}"
    before = dict(mesh)
    got = trial.run(mesh)
    trial.require(
        lambda: mesh_unchanged(mesh, before),
        lambda: groups_form(got, list | tuple),
        lambda: _right([list(group) for group in got], mesh),
    )


def _right(got: list[list[int]], mesh: Mesh) -> Finding | None:
    right = _groups(mesh)
    if got == right:
        return None
    if in_order(got) == right:
        return MISTAKES.not_sorted()
    if in_order(got) == groups_along(mesh, ["pp"]):
        return MISTAKES.whole_pipelines()
    for names in permutations(mesh):
        assumed = {dim: mesh[dim] for dim in names}
        if in_order(got) == _groups(assumed):
            return MISTAKES.order_assumed(assumed=assumed)
    return first_difference(got, right)


def _groups(mesh: Mesh) -> Groups:
    """Return the ranks of the first and the last stage of each pipeline."""
    return sorted(sorted({group[0], group[-1]}) for group in groups_along(mesh, ["pp"]))
