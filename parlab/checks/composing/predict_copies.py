"""Exercise `predict_copies`."""

from collections.abc import Iterator, Mapping

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, first_wrong, form, misconception
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import mesh_unchanged, places

MISTAKES = Mistakes(
    replicas_left_out=(
        "{name}: this counts one replica. All data-parallel replicas have the same averaged "
        "gradient"
    ),
    shards_left_out=(
        "{name}: this counts one rank of each tensor-parallel group, but all of them have the "
        "whole gradient"
    ),
    split_counted=(
        "{name}: this counts all ranks of a tensor-parallel group, but each of them has another "
        "part"
    ),
    every_stage=(
        "{name}: this counts all stages, but {where}. The other stages do not have this gradient"
    ),
    one_stage_only=(
        "embedding: this counts one stage. With a pipeline, both the first and the last stage have "
        "the gradient"
    ),
    one_stage_twice=(
        "embedding: this counts two stages, but there is only one, and it has one parameter for "
        "both uses"
    ),
    not_sharded=(
        "{name}: this counts all replicas. After the reduce-scatter, each replica has another shard"
    ),
)
MESHES = (
    {"tp": 5, "dp": 3, "pp": 7},
    {"tp": 2, "dp": 4, "pp": 1},  # the same order again, with other sizes
    {"dp": 5, "pp": 1, "tp": 3},
    {"pp": 2, "tp": 11, "dp": 2},
    {"dp": 7, "tp": 1, "pp": 3},
)


@check_of(MISTAKES, ranks=1)
def predict_copies(check: Check) -> str:
    """Compare with a count of the ranks, for meshes in several orders."""
    with check.trial() as trial:
        for mesh in MESHES:
            _compare(trial, dict(mesh))
    return "the copies of five gradients on meshes in several orders, also with one stage and two"


def _compare(trial: Trial, mesh: dict[str, int]) -> None:
    trial.situation = f"the mesh is {mesh}"
    right, before = _counted(mesh), dict(mesh)
    predicted = trial.run(mesh)
    trial.require(
        lambda: mesh_unchanged(mesh, before),
        lambda: form(predicted, right),
        lambda: misconception(predicted, right, _wrong(**mesh)),
        lambda: first_wrong(predicted, right, "the number of copies"),
    )


def _counted(mesh: Mapping[str, int]) -> dict[str, int]:
    """Count the ranks that have the gradient that rank 0, on the first stage, has."""
    ranks = places(mesh)
    ends = (0, mesh["pp"] - 1)
    first = [at for at in ranks if at["pp"] == 0]
    column = [at for at in first if at["tp"] == 0]
    return {
        "norm": len(first),
        "column": len(column),
        "embedding": sum(at["pp"] in ends for at in ranks),
        "norm_shard": sum(at["dp"] == 0 for at in first),
        "column_shard": sum(at["dp"] == 0 for at in column),
    }


def _wrong(dp: int, pp: int, tp: int) -> Iterator[Wrong]:
    """List what each mistake predicts."""
    a_layer = "a layer is on one stage"
    yield "norm", tp, MISTAKES.replicas_left_out(name="norm")
    yield "norm", dp, MISTAKES.shards_left_out(name="norm")
    yield "norm", dp * tp * pp, MISTAKES.every_stage(name="norm", where=a_layer)
    yield "column", 1, MISTAKES.replicas_left_out(name="column")
    yield "column", dp * tp, MISTAKES.split_counted(name="column")
    yield "column", dp * pp, MISTAKES.every_stage(name="column", where=a_layer)
    if pp > 1:
        yield "embedding", dp * tp, MISTAKES.one_stage_only()
    if pp > 2:
        where = "the embedding is only on the first and the last"
        yield "embedding", dp * tp * pp, MISTAKES.every_stage(name="embedding", where=where)
    if pp == 1:
        yield "embedding", 2 * dp * tp, MISTAKES.one_stage_twice()
    yield "embedding", tp * min(pp, 2), MISTAKES.replicas_left_out(name="embedding")
    yield "embedding", dp * min(pp, 2), MISTAKES.shards_left_out(name="embedding")
    yield "norm_shard", dp * tp, MISTAKES.not_sharded(name="norm_shard")
    yield "norm_shard", 1, MISTAKES.shards_left_out(name="norm_shard")
    yield "column_shard", dp, MISTAKES.not_sharded(name="column_shard")
    yield "column_shard", tp, MISTAKES.split_counted(name="column_shard")
