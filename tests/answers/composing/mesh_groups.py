"""Answers to `mesh_groups`."""

import math

import numpy as np

from parlab_staff.answers import Answers

answers = Answers("mesh_groups")

PERMUTED = "ranks.permute(*same, *different)"
RESULT = f"{PERMUTED}.reshape(-1, size).tolist()"

answers.edit("consecutive", "consecutive", (PERMUTED, "ranks"))
answers.edit(
    "complement",
    "the_others",
    ("if dim not in dims]", "if dim in dims_]"),
    ("if dim in dims]", "if dim not in dims]"),
    ("dims_]", "dims]"),
    ("reshape(-1, size)", "reshape(size, -1)"),
)
answers.edit("only_one", "first_group", (RESULT, f"{RESULT}[0]"))
answers.edit("only_one", "list_of_the_first_group", (RESULT, f"{RESULT}[:1]"))
answers.edit(
    "not_sorted",
    "as_dims_are_given",
    (
        "[i for i, dim in enumerate(mesh) if dim in dims]",
        "[list(mesh).index(dim) for dim in dims]",
    ),
)
answers.edit(
    "not_refused",
    "ignored",
    ("if dim not in mesh:", "if False:"),
    ("math.prod(mesh[dim] for", "math.prod(mesh.get(dim, 1) for"),
)
answers.edit(
    None,
    "nothing_named",
    ('f"the mesh has no dimension {dim!r}, only {list(mesh)}"', '"a dimension is not there"'),
    says="does not name",
)
answers.edit(
    None, "only_first_dim_tested", ("for dim in dims:", "for dim in dims[:1]:"), says="KeyError"
)
answers.edit("wrong_type", "a_tensor", (".tolist()", ""))
answers.edit(
    "wrong_type", "tuples", (RESULT, f"list(map(tuple, {RESULT}))"), says="a group is a tuple"
)
answers.edit("returns_none", "no_return", ("return ranks", "ranks"))


def coordinates(rank, mesh):
    found = {}
    for dim in reversed(mesh):
        rank, found[dim] = divmod(rank, mesh[dim])
    return found


def named(mesh, dims):
    for dim in dims:
        if dim not in mesh:
            raise ValueError(f"no dimension {dim}")


@answers.wrong(None)
def one_for_each_rank(mesh, *dims):
    named(mesh, dims)
    every = [coordinates(rank, mesh) for rank in range(math.prod(mesh.values()))]
    return [
        [r for r, other in enumerate(every) if all(other[d] == own[d] for d in mesh.keys() - dims)]
        for own in every
    ]


@answers.wrong(None, says="mesh {'p': 2, 'dp': 3, 'pp': 2}, dims")
def parts_of_names(mesh, *dims):
    """Takes "p" for one of the dimensions if "dp" is."""
    named(mesh, dims)
    joined, groups = " ".join(dims), {}
    for rank in range(math.prod(mesh.values())):
        own = coordinates(rank, mesh)
        groups.setdefault(tuple(own[dim] for dim in mesh if dim not in joined), []).append(rank)
    return list(groups.values())


@answers.wrong("argument_changed")
def sizes_taken_out(mesh, *dims):
    named(mesh, dims)
    groups = sorted_into_a_dictionary(dict(mesh), *dims)
    for dim in dims:
        mesh.pop(dim)
    return groups


@answers.right
def sorted_into_a_dictionary(mesh, *dims):
    named(mesh, dims)
    groups = {}
    for rank in range(math.prod(mesh.values())):
        own = coordinates(rank, mesh)
        groups.setdefault(tuple(own[dim] for dim in mesh if dim not in dims), []).append(rank)
    return list(groups.values())


@answers.right
def axes_moved(mesh, *dims):
    for dim in set(dims) - set(mesh):
        raise ValueError(f"The mesh lacks {dim}")
    axes = [i for i, dim in enumerate(mesh) if dim in dims]
    grid = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    moved = np.moveaxis(grid, axes, range(grid.ndim - len(axes), grid.ndim))
    return [group.ravel().tolist() for group in moved.reshape(-1, math.prod(mesh[d] for d in dims))]


@answers.right
def by_offsets(mesh, *dims):
    """Adds the offsets of a group to the first rank of each group."""
    named(mesh, dims)
    stride, offsets, firsts = 1, [0], [0]
    for dim in reversed(list(mesh)):
        steps = [i * stride for i in range(mesh[dim])]
        if dim in dims:
            offsets = [a + b for a in steps for b in offsets]
        else:
            firsts = [a + b for a in steps for b in firsts]
        stride *= mesh[dim]
    return [[first + offset for offset in offsets] for first in firsts]
