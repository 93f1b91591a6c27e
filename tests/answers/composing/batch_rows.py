"""Answers to `batch_rows`."""

import math

import numpy as np
import torch

from parlab_staff.answers import Answers

answers = Answers("batch_rows")

REPLICA = 'rank // next_replica % mesh["dp"]'
ROWS = "torch.arange(first, first + part).view(-1, micro_batch)"
DIVIDES = 'if global_batch % (mesh["dp"] * micro_batch):'

answers.edit("wrong_replica", "innermost", (REPLICA, 'rank % mesh["dp"]'))
answers.edit(
    "split_over_all_ranks",
    "one_part_for_each_rank",
    (REPLICA, "rank"),
    ('part = global_batch // mesh["dp"]', "part = global_batch // ranks"),
)
answers.edit(
    None,
    "same_rows_in_each_step",
    ("step * global_batch + replica * part", "replica * part"),
)
answers.edit(
    "not_consecutive",
    "strided",
    (
        ROWS,
        'torch.arange(step * global_batch, (step + 1) * global_batch)[replica :: mesh["dp"]]'
        ".view(-1, micro_batch)",
    ),
)
answers.edit("wrong_shape", "one_line", (ROWS, "torch.arange(first, first + part)"))
answers.edit("wrong_dtype", "int32", (ROWS, f"{ROWS}.int()"))
answers.edit(
    None,
    "through_float32",
    ("torch.arange(first, first + part)", "torch.arange(float(first), first + part).long()"),
    says="expected",
)
answers.edit("wrong_type", "lists", (ROWS, f"{ROWS}.tolist()"))
answers.edit(None, "elsewhere", (ROWS, f"{ROWS}.to('meta')"), says="the device meta")
answers.edit(
    "not_refused",
    "rest_left_out",
    (DIVIDES, "if False:"),
    ('part = global_batch // mesh["dp"]', 'part = global_batch // mesh["dp"]'),
    (ROWS, "torch.arange(first, first + part // micro_batch * micro_batch).view(-1, micro_batch)"),
)
answers.edit(
    "not_refused",
    "each_divides",
    (DIVIDES, 'if global_batch % mesh["dp"] or global_batch % micro_batch:'),
    (ROWS, "torch.arange(first, first + part // micro_batch * micro_batch).view(-1, micro_batch)"),
)
answers.edit("not_refused", "any_rank", ("if not 0 <= rank < ranks:", "if False:"), says="`rank`")
answers.edit(
    None,
    "micro_batch_named",
    ('f"global_batch {global_batch} is', 'f"{global_batch} is'),
    says="does not name `global_batch`",
)


@answers.wrong(None, says="Raise a ValueError")
def not_tested(step, rank, mesh, global_batch, micro_batch):
    """Leaves the error to `reshape`."""
    replica = replica_of(rank, mesh)
    rows = torch.arange(step * global_batch, (step + 1) * global_batch)
    return rows.reshape(mesh["dp"], -1, micro_batch)[replica]


def replica_of(rank, mesh):
    if not 0 <= rank < math.prod(mesh.values()):
        raise ValueError(f"no rank {rank}")
    for dim in reversed(mesh):
        rank, coordinate = divmod(rank, mesh[dim])
        if dim == "dp":
            return coordinate


def divided(mesh, global_batch, micro_batch):
    rows = mesh["dp"] * micro_batch
    if global_batch % rows != 0:
        raise ValueError(f"global_batch is {global_batch}, no multiple of {rows}")
    return global_batch // rows


@answers.right
def one_view(step, rank, mesh, global_batch, micro_batch):
    count = divided(mesh, global_batch, micro_batch)
    rows = torch.arange(step * global_batch, (step + 1) * global_batch)
    return rows.view(mesh["dp"], count, micro_batch)[replica_of(rank, mesh)]


@answers.right
def by_numpy(step, rank, mesh, global_batch, micro_batch):
    if rank not in range(math.prod(mesh.values())):
        raise ValueError(f"Rank {rank} is not there")
    sizes, at = tuple(mesh.values()), list(mesh).index("dp")
    replica = np.unravel_index(rank, sizes)[at]
    if global_batch % mesh["dp"] or global_batch // mesh["dp"] % micro_batch:
        raise ValueError(f"global_batch={global_batch}")
    parts = np.split(np.arange(global_batch) + step * global_batch, mesh["dp"])
    return torch.from_numpy(parts[replica].reshape(-1, micro_batch))


@answers.right
def chunks(step, rank, mesh, global_batch, micro_batch):
    divided(mesh, global_batch, micro_batch)
    rows = torch.arange(step * global_batch, (step + 1) * global_batch)
    own = rows.chunk(mesh["dp"])[replica_of(rank, mesh)]
    return torch.stack(own.split(micro_batch))
