"""Answers to `mesh_coordinates`."""

import math

import numpy as np

from parlab_staff.answers import Answers

answers = Answers("mesh_coordinates")

DIVIDED = "rank, coordinates[dim] = divmod(rank, mesh[dim])"
REFUSED = "if not 0 <= rank < ranks:"

answers.edit("first_fastest", "first_fastest", ("in reversed(list(mesh))", "in mesh"))
answers.edit(
    "other_order", "last_dimension_first", ("dict.fromkeys(mesh, 0)", "{}"), says="['tp', 'pp'"
)
answers.edit("not_refused", "negative_rank", (REFUSED, "if rank >= ranks:"), says="rank -1")
answers.edit("not_refused", "one_too_many", (REFUSED, "if not 0 <= rank <= ranks:"), says="rank 8")
answers.edit(None, "nothing_named", ('f"rank {rank} is', 'f"{rank} is'), says="not name `rank`")
answers.edit(None, "index_error", ("raise ValueError(f", "raise IndexError(f"), says="a ValueError")
answers.edit("wrong_type", "a_list", ("return coordinates", "return list(coordinates.values())"))
answers.edit("returns_none", "no_return", ("return coordinates", "coordinates"))
answers.edit(
    "argument_changed",
    "dimensions_removed",
    ("for dim in reversed(list(mesh)):", "while mesh:"),
    (DIVIDED, "dim, size = mesh.popitem(); rank, coordinates[dim] = divmod(rank, size)"),
)


@answers.wrong("wrong_type", says="an int")
def numbers_of_numpy(rank, mesh):
    if not 0 <= rank < math.prod(mesh.values()):
        raise ValueError(f"rank {rank}")
    return dict(zip(mesh, np.unravel_index(rank, tuple(mesh.values())), strict=True))


@answers.wrong("raises")
def three_dimensions(rank, mesh):
    dp, pp, tp = mesh.values()
    if not 0 <= rank < dp * pp * tp:
        raise ValueError(f"rank {rank}")
    return dict(zip(mesh, (rank // (pp * tp), rank // tp % pp, rank % tp), strict=True))


@answers.wrong(None, says="expected {")
def always_in_the_usual_order(rank, mesh):
    """Numbers the ranks as if tensor parallelism were always the innermost dimension."""
    if not 0 <= rank < math.prod(mesh.values()):
        raise ValueError(f"rank {rank}")
    usual = sorted(mesh, key=lambda dim: (dim == "tp", dim == "pp"))
    coordinates = {}
    for dim in reversed(usual):
        rank, coordinates[dim] = divmod(rank, mesh[dim])
    return {dim: coordinates[dim] for dim in mesh}


@answers.right
def outermost_first(rank, mesh):
    left = math.prod(mesh.values())
    if rank not in range(left):
        raise ValueError(f"the mesh has no rank {rank}")
    coordinates = {}
    for dim, size in mesh.items():
        left //= size
        coordinates[dim], rank = divmod(rank, left)
    return coordinates


@answers.right
def by_stride(rank, mesh):
    sizes = list(mesh.values())
    if rank < 0 or rank >= math.prod(sizes):
        raise ValueError(f"Rank {rank} is outside of the mesh")
    return {
        dim: rank // math.prod(sizes[i + 1 :]) % size for i, (dim, size) in enumerate(mesh.items())
    }


@answers.right
def unraveled(rank, mesh):
    if not 0 <= rank < math.prod(mesh.values()):
        raise ValueError(f"rank={rank}")
    found = np.unravel_index(rank, tuple(mesh.values())) if mesh else ()
    return {dim: int(c) for dim, c in zip(mesh, found, strict=True)}
