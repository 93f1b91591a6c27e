"""Exercise `embedding_groups`."""

from collections.abc import Collection, Iterator
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import Mesh, mesh_unchanged, peers, places

MISTAKES = Mistakes(
    whole_pipelines=(
        "the groups have all stages. Only the first and the last stage have the embedding"
    ),
    first_two_stages="the groups have the first two stages. Use the first and the last one",
    stages_between=(
        "ranks of the stages between, such as rank {rank}, are in a group. They do not have the "
        "embedding"
    ),
    ranks_twice="with one stage, some rank is twice in its group. It is a group of its own",
    no_groups="with one stage, there are no groups. Each rank is a group of its own",
    order_assumed=(
        "these are the groups of the mesh {assumed}. The dimensions can have any order: the last "
        "one of `mesh` changes fastest with the rank"
    ),
    not_sorted=(
        "the groups are right, but not in order. The ranks of a group ascend, and the groups are "
        "in the order of their first ranks"
    ),
    not_refused='it accepts the mesh {mesh}: raise a ValueError that names "pp"',
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
        trial.situation = "with a wrong mesh"
        for mesh in REFUSED:
            require_refusal(
                trial,
                lambda mesh=mesh: check.function(dict(mesh)),
                MISTAKES.not_refused(mesh=mesh),
                what=f"the mesh {mesh}",
                names="pp",
            )
    return "the ranks of the first and the last stage in meshes of any order, with 1 to 6 stages"


def _compare(trial: Trial, mesh: dict[str, int]) -> None:
    trial.situation = f"the mesh is {mesh}"
    before = dict(mesh)
    got = trial.run(mesh)
    trial.require(
        lambda: mesh_unchanged(mesh, before),
        lambda: _form(got),
        lambda: _right([list(group) for group in got], mesh),
    )


def _form(got: Any) -> Finding | None:
    if found := has_type(got, list | tuple, "a list of groups"):
        return found
    for group in got:
        if found := has_type(group, list | tuple, "a list of ranks", "a group"):
            return found
        for rank in group:
            if type(rank) is not int:
                return observed(f"a rank is a {type(rank).__name__}, expected an int")
    return None


def _right(got: list[list[int]], mesh: Mesh) -> Finding | None:
    right = _groups(mesh, _ends(mesh["pp"]))
    if got == right:
        return None
    for finding, wrong in _wrong(mesh):
        if _in_order(got) == wrong != right:
            return finding
    if _in_order(got) == right:
        return MISTAKES.not_sorted()
    if mesh["pp"] == 1 and _in_order([[*set(group)] for group in got]) == right:
        return MISTAKES.ranks_twice()
    between = {r for group in _groups(mesh, range(1, mesh["pp"] - 1)) for r in group}
    listed = [rank for group in got for rank in group if rank in between]
    if listed and sorted(g for g in got if not between & set(g)) == right:
        return MISTAKES.stages_between(rank=listed[0])
    return _first_difference(got, right)


def _first_difference(got: list[list[int]], right: list[list[int]]) -> Finding:
    for index, (one, other) in enumerate(zip(got, right, strict=False)):
        if one != other:
            return observed(f"group {index} is {one}, expected {other}")
    return observed(f"there are {len(got)} groups, expected {len(right)}")


def _ends(stages: int) -> list[int]:
    return sorted({0, stages - 1})


def _groups(mesh: Mesh, stages: Collection[int]) -> list[list[int]]:
    """Return the ranks of these stages that differ only in "pp"."""
    at, groups = places(mesh), {tuple(group) for group in peers(mesh, ["pp"])}
    return sorted([rank for rank in group if at[rank]["pp"] in stages] for group in groups)


def _wrong(mesh: Mesh) -> Iterator[tuple[Finding, list[list[int]]]]:
    """Yield what mistakes return."""
    stages = mesh["pp"]
    yield MISTAKES.whole_pipelines(), _groups(mesh, range(stages))
    if stages > 1:
        yield MISTAKES.first_two_stages(), _groups(mesh, (0, 1))
    if stages == 1:
        yield MISTAKES.no_groups(), []
    if set(mesh) == {"dp", "pp", "tp"}:
        for names in (("dp", "pp", "tp"), ("pp", "dp", "tp"), ("tp", "pp", "dp"), (*mesh,)[::-1]):
            assumed = {dim: mesh[dim] for dim in names}
            groups = _groups(assumed, _ends(stages))
            yield MISTAKES.order_assumed(assumed=assumed), groups


def _in_order(groups: list[list[int]]) -> list[list[int]]:
    return sorted(map(sorted, groups))
