"""Exercise `predict_layer`."""

from collections.abc import Mapping

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import require_numbers
from parlab.checks.base.trial import Trial
from parlab.costs import tensor_parallel as costs

MISTAKES = Mistakes(
    forward_only="all_reduces: this is the forward pass only. Backward, each f adds one",
    elements="{name}: this counts numbers. A float32 number takes 4 bytes",
    mlp_width=(
        "bytes: this is 4 times too much. Count one all-reduce of the layer, not four. It sums an "
        "output of size h, not the MLP's 4h hidden numbers"
    ),
    whole=(
        "{name}: on a ring, a rank keeps its own part. It sends (N−1)/N of the data in a gather, "
        "and twice that in an all-reduce"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_layer(check: Check) -> str:
    """Compare with the formula."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        small = pick(2, 9), pick(5, 30), 4 * pick(5, 30)
        large = pick(2, 9), 2048, 128 * pick(8, 90)
        for sizes in ((*large, 8), (*small, 3), (*large, 1)):
            _compare(trial, sizes)
    return "4 all-reduces of batch × sequence × hidden numbers, whatever the weights"


def _compare(trial: Trial, sizes: tuple[int, int, int, int]) -> None:
    batch, sequence, hidden, n = sizes
    right = costs.layer_in_numbers(*sizes, 4)
    trial.situation = f"batch {batch}, sequence {sequence}, hidden {hidden}, N = {n}"
    predicted = trial.run(*sizes)
    if n == 1 and isinstance(predicted, Mapping) and predicted.get("all_reduces") == 0:
        right = right | {"all_reduces": 0}  # one rank has nothing to reduce
    wrong = [
        ("all_reduces", 2, MISTAKES.forward_only()),
        ("bytes", 4 * right["bytes"], MISTAKES.mlp_width()),
    ]
    if n == 8:  # on other numbers of ranks, some of these are the same
        wrong += [
            (one, right[one] / 4, MISTAKES.elements(name=one)) for one in ("bytes", "weights")
        ]
        wrong += [
            (one, right[one] * 8 / 7, MISTAKES.whole(name=one)) for one in ("sent", "weights")
        ]
    require_numbers(trial, predicted, right, wrong, "the right number")
