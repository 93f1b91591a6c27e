"""Exercise `batch_rows`."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import MESHES, Mesh, of_all_ranks, places

MISTAKES = Mistakes(
    wrong_replica=(
        'these are the rows of another replica. The replica of a rank is its coordinate "dp"'
    ),
    split_over_all_ranks=(
        "the batch is divided among all ranks. Divide it among the replicas: all ranks of a "
        "replica read the same rows"
    ),
    not_consecutive=(
        "the replicas take turns in the global batch. Each of them reads one part of consecutive "
        "rows"
    ),
)
MESH = {"tp": 2, "dp": 2, "pp": 2}
REFUSED = ((0, 15, 1), (0, 18, 2), (5, 12, 4), (7, 4, 4))  # rank, global batch, micro-batch


@check_of(MISTAKES, ranks=1)
def batch_rows(check: Check) -> str:
    """Compare the rows of all ranks of several meshes, for several steps and sizes."""
    with check.trial() as trial:
        for mesh in MESHES:
            pick = trial.draw.randint
            of_replica = math.prod(mesh.values()) // mesh["dp"]
            sizes = [(3, 2, 2 * of_replica), (0, 3, 2), (pick(10, 99), pick(2, 4), pick(2, 5))]
            sizes += [(1, 1, 3), (1, 3, 1), (1, 1, 1), (10**9 + 1, 2, 3)]  # row 6e9 needs int64
            for step, micro_batch, count in sizes:
                _compare(trial, step, mesh, micro_batch, count)
        trial.situation = f"in the mesh {MESH}"
        ranks = {f"rank {rank}": (1, rank, dict(MESH), 16, 2) for rank in (8, -1)}
        require_refusals(trial, ranks, "rank")
        sizes = {
            f"global_batch {whole} and micro_batch {micro}": (1, rank, dict(MESH), whole, micro)
            for rank, whole, micro in REFUSED
        }
        require_refusals(trial, sizes, "global_batch")
    return (
        "consecutive rows for each replica, and the same ones for all its ranks, with data "
        "parallelism at any place in the mesh"
    )


def _compare(trial: Trial, step: int, mesh: Mesh, micro_batch: int, count: int) -> None:
    global_batch = mesh["dp"] * micro_batch * count
    trial.situation = (
        f"mesh {mesh}, step {step}, global_batch {global_batch}, micro_batch {micro_batch}"
    )
    function = trial.check.function
    got = of_all_ranks(trial, mesh, lambda r, of: function(step, r, of, global_batch, micro_batch))
    rows = torch.arange(global_batch).view(mesh["dp"], count, micro_batch) + step * global_batch
    trial.require(
        *(lambda one=one: _form(one) for one in got),
        *(lambda rank=rank, one=one: _rows(one, rank, mesh, rows) for rank, one in enumerate(got)),
    )


def _form(got: Any) -> Finding | None:
    if found := has_type(got, Tensor, "a torch.Tensor"):
        return found
    if got.device.type != "cpu":
        return observed(f"the rows are on the device {got.device}, expected the CPU")
    return None


def _rows(got: Tensor, rank: int, mesh: Mesh, rows: Tensor) -> Finding | None:
    """Compare the rows of a rank. `rows` has the rows of all replicas."""
    right, name = rows[places(mesh)[rank]["dp"]], f"rank {rank}'s result"
    return explained(got, right, _wrong(rank, mesh, rows), MISTAKES, name, with_name=True)


def _wrong(rank: int, mesh: Mesh, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the rows that mistakes would return."""
    dp, _, micro_batch = rows.shape
    replica, ranks = places(mesh)[rank]["dp"], math.prod(mesh.values())
    for other in rows:
        yield "wrong_replica", other
    yield "not_consecutive", rows.view(-1, dp, micro_batch)[:, replica]
    yield "not_consecutive", rows.view(-1, dp)[:, replica].view(-1, micro_batch)
    if rows.numel() % (ranks * micro_batch) == 0:
        yield "split_over_all_ranks", rows.view(ranks, -1, micro_batch)[rank]
