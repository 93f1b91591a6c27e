"""Exercise `predict_activations`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import require_numbers
from parlab.costs import tensor_parallel as costs

MISTAKES = Mistakes(
    all_cut=(
        "tensor_parallel: this cuts everything. The inputs of the norms and of the two layers cut "
        "by columns are outside f and g, so every rank has all of them"
    ),
    norms_only=(
        "tensor_parallel: not only the norms' inputs are whole on every rank, but also the inputs "
        "of the two layers cut by columns"
    ),
    gathered_kept=(
        "sequence_parallel: the inputs of the two layers cut by columns are gathered, but a rank "
        "keeps only its shard, and gathers again in the backward pass"
    ),
    elements="serial: this counts numbers. A float32 number takes 4 bytes",
)


@check_of(MISTAKES, ranks=1)
def predict_activations(check: Check) -> str:
    """Compare with the formulas."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        for n in (8, pick(3, 17), 1):
            batch, sequence, hidden = pick(2, 5), n * pick(3, 9), 64 * pick(1, 3)
            trial.situation = f"batch {batch}, sequence {sequence}, hidden {hidden}, N = {n}"
            predicted = trial.run(batch, sequence, hidden, n)
            right = costs.block_in_numbers(batch, sequence, hidden, n, 4)
            serial, norms = right["serial"], right["serial"] * (2 + 14 / n) / 16
            wrong = [
                ("serial", serial / 4, MISTAKES.elements()),
                ("tensor_parallel", serial / n, MISTAKES.all_cut()),
                ("tensor_parallel", norms, MISTAKES.norms_only()),
                ("sequence_parallel", norms, MISTAKES.gathered_kept()),
            ]
            require_numbers(trial, predicted, right, wrong, "the right number")
    return "16 numbers a token and hidden unit; 4 + 12/N with tensor parallelism; 16/N with both"
