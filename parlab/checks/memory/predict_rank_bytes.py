"""Exercise `predict_rank_bytes`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.costs.collectives import ring_bytes

BLOCK = 256

MISTAKES = Mistakes(
    absmax_left_out=(
        "states: this is too little for the absmax. Each block of m and of v has one, which is a "
        "float32"
    ),
    not_sharded="states: this is what all ranks hold together. A rank has one of N shards",
    gradients_sharded=(
        "gradients: this shards them, too. In stage 1, a rank keeps all gradients until they are "
        "reduced"
    ),
    not_checkpointed=(
        "activations: this is what layers keep that are not checkpointed. A checkpointed layer "
        "keeps only its input"
    ),
    reduced_twice=(
        "sent: this is 1.5 times the right number. A step has one reduce-scatter and one "
        "all-gather, and recomputation sends nothing"
    ),
    whole="sent: this sends all the data twice. On a ring, a rank keeps its own part: (N − 1)/N",
)


@check_of(MISTAKES, ranks=1)
def predict_rank_bytes(check: Check) -> str:
    """Compare for several models and numbers of ranks."""
    with check.trial() as trial:
        draw = trial.draw
        cases = {}
        # With 3 ranks, `reduced_twice` and `whole` predict the same number.
        for ranks in (6, 5, draw.randrange(8, 64), 1):
            parameters = ranks * draw.randrange(10, 10**3) * BLOCK
            sizes = [draw.randrange(3, 40) for _ in range(4)]
            named = (f"{name} = {size}" for name, size in zip("lbsh", sizes, strict=True))
            name = f"Ψ = {parameters:,}, N = {ranks}, {', '.join(named)}"
            cases[name] = parameters, ranks, *sizes
        for _, arguments in trial.cases(cases):
            right = right_numbers(*arguments)
            predicted = trial.run(*arguments)
            wrong = wrong_numbers(right, *arguments[:2])
            require_numbers(trial, predicted, right, wrong, "the right number")
    return "4Ψ + 4Ψ + 2.03Ψ/N held, 4bsh for each layer, and 8Ψ(N − 1)/N sent"


def right_numbers(
    parameters: int, ranks: int, layers: int, batch: int, sequence: int, hidden: int
) -> dict[str, float]:
    shard, size = parameters // ranks, 4 * parameters
    return {
        "parameters": size,
        "gradients": size,
        "states": 2 * (shard + 4 * shard // BLOCK),
        "activations": 4 * layers * batch * sequence * hidden,
        "sent": ring_bytes("reduce_scatter", size, ranks) + ring_bytes("all_gather", size, ranks),
    }


def wrong_numbers(right: dict[str, float], parameters: int, ranks: int) -> list[Wrong]:
    """List what each mistake predicts."""
    table = [
        ("states", 2 * parameters / ranks, "absmax_left_out"),
        ("states", 2 * parameters, "not_sharded"),
        ("states", right["states"] * ranks, "not_sharded"),
        ("gradients", right["gradients"] / ranks, "gradients_sharded"),
        ("activations", 16 * right["activations"], "not_checkpointed"),
        ("activations", 34 * right["activations"] / 4, "not_checkpointed"),
        ("sent", right["sent"] * 1.5, "reduced_twice"),
        ("sent", 8 * parameters, "whole"),
    ]
    return [(name, value, getattr(MISTAKES, key)()) for name, value, key in table]
