"""Exercise `predict_layer`."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.predictions import first_wrong, form, is_number
from parlab.checks.trial import Trial
from parlab.costs import tensor_parallel as costs

MISTAKES = Mistakes(
    forward_only=(
        "all_reduces: that is the forward pass alone. The backward pass needs f where each of the "
        "two parts begins"
    ),
    one_part=("all_reduces: attention and the MLP are two parts, and each has an f and a g"),
    elements="{name}: that counts numbers. A float32 takes 4 bytes",
    mlp_width=(
        "bytes: the 4h hidden numbers of the MLP stay where they are. What is reduced is its "
        "output, of size h"
    ),
    shard=(
        "bytes: that is a rank's share. Each rank has a part of every number of the sum, and hands "
        "in all of them"
    ),
    one_way=(
        "sent: an all-reduce on a ring is a reduce-scatter and an all-gather, and a rank sends "
        "(N−1)/N of the data in each"
    ),
    whole="{name}: on a ring a rank sends (N−1)/N of the data: it keeps its own part",
    sixteen_bit="{name}: that has 2 bytes for each number. A float32 takes 4",
    handed_in=("sent: that is what ranks hand in. On a ring a rank sends 2(N−1)/N of it"),
    mlp_width_sent=(
        "sent: the 4h hidden numbers of the MLP stay where they are. All four all-reduces are of "
        "the layer's size h"
    ),
    gathered_twice=(
        "weights: that goes around the ring twice, as an all-reduce. A gather goes around once"
    ),
    one_all_reduce="sent: that is one all-reduce. A layer makes several",
)


@check_of(MISTAKES)
def predict_layer(check: Check) -> str:
    """Compare with all-reduces that the ledger counts, and with the formula."""
    with check.trial() as trial:
        n = trial.size
        batch, sequence = trial.draw.randrange(2, 9), n * trial.draw.randrange(5, 30)
        hidden = 4 * trial.draw.randrange(5, 30)
        shape = (trial.draw.randrange(2, 9), 2048, 128 * trial.draw.randrange(8, 90))
        _compare(trial, (*shape, 8), costs.layer_in_numbers(*shape, 8, 4))
        _compare(trial, (batch, sequence, hidden, n), measured(trial, batch, sequence, hidden))
        _compare(trial, (*shape, 1), costs.layer_in_numbers(*shape, 1, 4))
    return "4 all-reduces of batch × sequence × hidden numbers, whatever the weights"


def _compare(trial: Trial, sizes: tuple[int, int, int, int], right: dict[str, float]) -> None:
    batch, sequence, hidden, ranks = sizes
    trial.situation = f"batch {batch}, sequence {sequence}, hidden {hidden}, N = {ranks}"
    predicted = trial.run(*sizes)
    # On one rank an all-reduce has nothing to do: who leaves it out makes none.
    if ranks == 1 and isinstance(predicted, Mapping) and predicted.get("all_reduces") == 0:
        right = right | {"all_reduces": 0}
    trial.require(
        lambda: form(predicted, right),
        lambda: misconception(predicted, right, ranks),
        lambda: first_wrong(predicted, right),
    )


def measured(trial: Trial, batch: int, sequence: int, hidden: int) -> dict[str, float]:
    """What the all-reduces of a layer are, by the ledger, on all ranks of the trial."""
    trial.ledger.clear()
    for _ in range(4):
        dist.all_reduce(torch.zeros(batch, sequence, hidden), group=trial.group)
    ledger = trial.ledger
    numbers = {
        "all_reduces": ledger.count("all_reduce"),
        "bytes": ledger.calls[0].bytes_sent,
        "sent": ledger.ring_bytes(),
    }
    trial.ledger.clear()
    own = torch.zeros(12 * hidden**2 // trial.size)
    dist.all_gather_single(torch.zeros(len(own) * trial.size), own, group=trial.group)
    return {**numbers, "weights": trial.ledger.ring_bytes()}


def misconception(
    predicted: dict[str, float], right: dict[str, float], ranks: int
) -> Finding | None:
    if is_number(predicted["all_reduces"], 2):
        return MISTAKES.forward_only()
    if is_number(predicted["all_reduces"], 1):
        return MISTAKES.one_part()
    for name in ("bytes", "sent", "weights"):
        if (
            right[name]
            and is_number(predicted[name], right[name] / 4)
            and not (name == "sent" and predicted["bytes"] == right["bytes"])
        ):
            return MISTAKES.elements(name=name)
    if ranks != 2 and is_number(predicted["bytes"], right["bytes"] / 2):
        return MISTAKES.sixteen_bit(name="bytes")
    if is_number(predicted["bytes"], 4 * right["bytes"]):
        return MISTAKES.mlp_width()
    if ranks > 1 and is_number(predicted["bytes"], right["bytes"] / ranks):
        return MISTAKES.shard()
    if ranks == 1:
        return None
    for name in ("sent", "weights"):
        if is_number(predicted[name], right[name] * ranks / (ranks - 1)):
            return MISTAKES.whole(name=name)
    # On two ranks as many bytes are sent as handed in.
    if ranks > 2 and is_number(predicted["sent"], 4 * right["bytes"]):
        return MISTAKES.handed_in()
    if is_number(predicted["sent"], 2.5 * right["sent"]):
        return MISTAKES.mlp_width_sent()
    if is_number(predicted["weights"], 2 * right["weights"]):
        return MISTAKES.gathered_twice()
    if is_number(predicted["sent"], right["sent"] / 2):
        return MISTAKES.one_way()
    if is_number(predicted["sent"], right["sent"] / 4):
        return MISTAKES.one_all_reduce()
    return None
