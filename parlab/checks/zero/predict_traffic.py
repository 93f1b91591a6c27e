"""Exercise `predict_traffic`."""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.checks.trial import Trial
from parlab.costs.zero import bytes_sent

RANKS = 4  # what numbers are given for; the check measures on as many ranks as there are

MISTAKES = Mistakes(
    whole=(
        "{name}: on a ring a rank sends (N−1)/N of the data: it keeps its own part. That makes "
        "half of it on two ranks"
    ),
    once=(
        "{name}: that is one collective's worth, or two of 16-bit numbers. An all-reduce is a "
        "reduce-scatter and an all-gather, and so is a step of stages 1 and 2; all in float32"
    ),
    all_reduce_and_gather=(
        "{name}: that is an all-reduce of gradients and an all-gather of parameters. A "
        "reduce-scatter in place of the all-reduce sends half of it"
    ),
    gathered_once=(
        "stage_3: what was freed after the forward pass has to come again for the backward pass"
    ),
    gathered_thrice=(
        "stage_3: after the optimizer's step nothing is gathered. Whoever needs whole parameters "
        "next gathers them"
    ),
    all_ranks="{name}: that is what all ranks send together. What does one send?",
    elements="{name}: that counts numbers. A float32 takes 4 bytes",
)


@check_of(MISTAKES)
def predict_traffic(check: Check) -> str:
    """Compare with the collectives of each stage, measured by the ledger, and with the formula."""
    with check.trial() as trial:
        numbers = trial.size * trial.draw.randrange(100, 1000)
        _compare(trial, numbers, trial.size, measured(trial, numbers))
        numbers = trial.draw.randrange(10**5, 10**7)
        right = {name: bytes_sent(numbers, RANKS, i, 4) for i, name in enumerate(_NAMES)}
        _compare(trial, numbers, RANKS, right)
    return "2Ψ, 2Ψ, 2Ψ and 3Ψ numbers of 4 bytes, times (N−1)/N, as the ledger counts them"


_NAMES = ("plain", "stage_1", "stage_2", "stage_3")


def _compare(trial: Trial, numbers: int, ranks: int, right: dict[str, float]) -> None:
    trial.situation = f"Ψ = {numbers:,}, N = {ranks}"
    predicted = trial.run(numbers, ranks)
    trial.require(
        lambda: form(predicted, right),
        lambda: misconception(predicted, right, wrong_numbers(right, ranks)),
        lambda: first_wrong(predicted, right),
    )


def measured(trial: Trial, numbers: int) -> dict[str, float]:
    """What the collectives of each stage send, on all ranks of the trial."""
    whole, shard = torch.zeros(numbers), torch.zeros(numbers // trial.size)

    def gather() -> None:
        dist.all_gather_single(whole, shard, group=trial.group)

    def scatter() -> None:
        dist.reduce_scatter_single(shard, whole, group=trial.group)

    def reduce() -> None:
        dist.all_reduce(whole, group=trial.group)

    plans = [[reduce], [scatter, gather], [scatter, gather], [gather, gather, scatter]]
    sent = {}
    for name, plan in zip(_NAMES, plans, strict=True):
        trial.ledger.clear()
        for collective in plan:
            collective()
        sent[name] = trial.ledger.ring_bytes()
    return sent


def wrong_numbers(right: dict[str, float], ranks: int) -> Iterator[Wrong]:
    once = right["plain"] / 2
    for name in _NAMES if ranks > 1 else ():
        if name == "stage_3":  # before `whole`: on four ranks both are a third too much
            yield name, 4 * once, MISTAKES.gathered_thrice()
            yield name, 2 * once, MISTAKES.gathered_once()
        yield name, right[name] * ranks / (ranks - 1), MISTAKES.whole(name=name)
        yield name, right[name] * ranks, MISTAKES.all_ranks(name=name)
        yield name, right[name] / 4, MISTAKES.elements(name=name)
        if name in ("stage_1", "stage_2"):
            yield name, 3 * once, MISTAKES.all_reduce_and_gather(name=name)
        if name != "stage_3":
            yield name, once, MISTAKES.once(name=name)
