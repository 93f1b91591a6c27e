"""Shared parts of the checks of meshes: meshes, right coordinates and groups, and comparisons."""

import math
from collections.abc import Callable, Collection, Mapping
from itertools import product
from typing import Any

from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import COMMON, Finding, observed
from parlab.checks.base.trial import Trial

Mesh = Mapping[str, int]

MESHES: list[dict[str, int]] = [
    {"dp": 2, "pp": 2, "tp": 2},
    {"pp": 3, "tp": 2, "dp": 4, "cp": 1},
    {"pp": 1, "ep": 3, "dp": 2},
    {"dp": 3, "ep": 2, "cp": 2, "pp": 1, "tp": 3},
    {"dp": 5},
    {"dp": 1, "tp": 1},
    {"p": 2, "dp": 3, "pp": 2},  # names that are parts of others
]

NOT_SORTED = (
    "the groups have the right ranks, but in the wrong order. Sort the ranks of each group, and "
    "the groups by their first ranks"
)
Groups = list[list[int]]


def places(mesh: Mesh) -> list[dict[str, int]]:
    """Return the coordinates of all ranks. As in a number with digits, the last changes fastest."""
    return [dict(zip(mesh, at, strict=True)) for at in product(*map(range, mesh.values()))]


def peers(mesh: Mesh, dims: Collection[str]) -> Groups:
    """Return for each rank the ranks that differ from it only in `dims`, itself included."""
    others = [tuple(at[dim] for dim in mesh if dim not in dims) for at in places(mesh)]
    return [[rank for rank, its in enumerate(others) if its == own] for own in others]


def of_all_ranks(trial: Trial, mesh: Mesh, call: Callable[[int, Mesh], Any]) -> list[Any]:
    """Return `call(rank, mesh)` for all ranks of a mesh. Require that calls do not change it."""
    meshes = [dict(mesh) for _ in range(math.prod(mesh.values()))]
    got = trial.run_function(lambda: [call(rank, of) for rank, of in enumerate(meshes)])
    trial.require(*(lambda of=of: mesh_unchanged(of, mesh) for of in meshes))
    return got or []


def groups_along(mesh: Mesh, dims: Collection[str]) -> Groups:
    """Return each group of ranks that differ only in `dims`, in the order of their first ranks."""
    return [group for rank, group in enumerate(peers(mesh, dims)) if rank == group[0]]


def groups_form(got: Any, kind: Any) -> Finding | None:
    """Return None if `got` is a list (of the type `kind`) of lists of ints."""
    if found := has_type(got, kind, "a list of groups"):
        return found
    for group in got:
        if found := has_type(group, kind, "a list of ranks", "a group"):
            return found
        for rank in group:
            if found := has_type(rank, int, "an int", "a rank in a group"):
                return found
    return None


def in_order(groups: Groups) -> Groups:
    return sorted(map(sorted, groups))


def first_difference(got: Groups, right: Groups) -> Finding:
    for index, (one, other) in enumerate(zip(got, right, strict=False)):
        if one != other:
            return observed(f"group {index} is {one}, expected {other}")
    return observed(f"there are {len(got)} groups, expected {len(right)}")


def mesh_unchanged(now: Mesh, before: Mesh) -> Finding | None:
    """Compare the sizes of a mesh and their order."""
    alike = list(now.items()) == list(before.items())
    return None if alike else COMMON.argument_changed(name="`mesh`")
