"""Exercise `predict_context_bytes`."""

from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.checks.base.trial import Trial

MISTAKES = Mistakes(
    own_part_sent=(
        "{name}: in an all-to-all, a rank keeps an N-th of its tensor for itself. Count only what "
        "it sends to other ranks"
    ),
    output_forgotten=(
        "{name}: this counts three tensors, but four are exchanged: queries, keys, values, and the "
        "output, or their gradients"
    ),
    one_step_too_many=(
        "{name}: the keys and values make one step too many. After N − 1 steps, every rank has had "
        "those of all others"
    ),
    gradients_not_home=(
        "ring_backward: after N − 1 steps, the gradients are on the last rank that added to them. "
        "They need one more step to get home"
    ),
    no_gradients="ring_backward: this counts the keys and values, but not their gradients",
)
ULYSSES = ("ulysses_forward", "ulysses_backward")


@check_of(MISTAKES, ranks=1)
def predict_context_bytes(check: Check) -> str:
    """Compare with the formulas on 2 to 12 ranks."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        for ranks in (pick(5, 13), pick(3, 5), pick(5, 13), 2):
            _compare(trial, pick(2, 6), ranks * pick(9, 99), ranks * pick(2, 6), pick(9, 99), ranks)
    return (
        "in each pass of Ulysses, (N − 1)/N of four tensors; on the ring, two tensors N − 1 times "
        "in the forward and 2N − 1 times in the backward pass"
    )


def _compare(trial: Trial, *sizes: int) -> None:
    batch, sequence, heads, head_size, n = sizes
    trial.situation = (
        f"batch {batch}, sequence {sequence}, {heads} heads of size {head_size}, N = {n}"
    )
    own = 4 * batch * sequence * heads * head_size / n
    right = dict.fromkeys(ULYSSES, 4 * own * (n - 1) / n)
    right |= {"ring_forward": 2 * own * (n - 1), "ring_backward": 2 * own * (2 * n - 1)}
    predicted = trial.run(*sizes)
    # On few ranks, different misconceptions predict the same numbers.
    wrong = _wrong(own, n) if n > 4 else ()
    require_numbers(trial, predicted, right, wrong, "what is sent")


def _wrong(own: float, n: int) -> Iterator[Wrong]:
    """Yield what misconceptions predict."""
    for name in ULYSSES:
        yield name, 4 * own, MISTAKES.own_part_sent(name=name)
        yield name, 3 * own * (n - 1) / n, MISTAKES.output_forgotten(name=name)
    yield "ring_forward", 2 * own * n, MISTAKES.one_step_too_many(name="ring_forward")
    yield "ring_backward", 4 * own * n, MISTAKES.one_step_too_many(name="ring_backward")
    yield "ring_backward", 4 * own * (n - 1), MISTAKES.gradients_not_home()
    yield "ring_backward", 2 * own * (n - 1), MISTAKES.no_gradients()
