"""Exercise `predict_copies`."""

from collections.abc import Iterator, Mapping

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.checks.base.trial import Trial
from parlab.checks.composing._meshes import mesh_unchanged, places

MISTAKES = Mistakes(
    split_counted=(
        "{name}: this counts all ranks of a tensor-parallel group, but each of them has a "
        "different part"
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
        "{name}: this counts all replicas. After the reduce-scatter, each replica has a different "
        "shard"
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
    trial.require(lambda: mesh_unchanged(mesh, before))
    require_numbers(trial, predicted, right, _wrong(**mesh), "the number of copies")


def _counted(mesh: Mapping[str, int]) -> dict[str, int]:
    """Count the ranks that have the same gradients as rank 0, which is on the first stage."""
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
    """Yield what each mistake predicts."""
    yield "norm", dp * tp * pp, MISTAKES.every_stage(name="norm", where="a layer is on one stage")
    yield "column", dp * tp, MISTAKES.split_counted(name="column")
    if pp > 2:
        where = "the embedding is only on the first and the last"
        yield "embedding", dp * tp * pp, MISTAKES.every_stage(name="embedding", where=where)
    two_stages = MISTAKES.one_stage_only() if pp > 1 else MISTAKES.one_stage_twice()
    yield "embedding", dp * tp * (1 if pp > 1 else 2), two_stages
    yield "norm_shard", dp * tp, MISTAKES.not_sharded(name="norm_shard")
    yield "column_shard", dp, MISTAKES.not_sharded(name="column_shard")
    yield "column_shard", tp, MISTAKES.split_counted(name="column_shard")
