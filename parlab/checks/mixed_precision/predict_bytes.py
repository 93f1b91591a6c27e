"""Exercise `predict_bytes`."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from parlab import memory
from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.checks.trial import Trial

RANKS = 6

MISTAKES = Mistakes(
    half_of_everything=(
        "{name}: that has 16 bits where float32 is needed: the master weights take 4 bytes a "
        "parameter, Adam's two moments 8"
    ),
    no_master_weights="{name}: that leaves out the float32 master weights",
    no_states="{name}: that leaves out Adam's two float32 moments",
    gradients_of_32_bits="{name}: that has float32 gradients: the backward pass gives 16-bit ones",
    three_of_four=(
        "held_float32: that is three of the four: weight, gradient and Adam's two moments take 4 "
        "bytes each"
    ),
    gradients_sharded=(
        "held_sharded: that shards the 16-bit gradients as well: in stage 1 a rank keeps all of "
        "them, and shards master weights and states"
    ),
    master_not_sharded=(
        "held_sharded: that leaves the master weights whole: they are sharded, as the states are"
    ),
    gathered_in_float32=(
        "sent_sharded: that gathers float32 weights: each rank rounds its part, and sends 16 bits"
    ),
    whole_each_time=(
        "{name}: each of the ring's 2(N−1) messages is an N-th of the data, not all of it"
    ),
    all_sharded="held_sharded: that shards the 16-bit weights and gradients as well",
    nothing_sharded="held_sharded: that shards nothing: master weights and states are 12Ψ/N",
    sent_in_float32="{name}: that is what float32 takes: 16-bit numbers are 2 bytes",
    once="{name}: half of it: a reduce-scatter and an all-gather, and an all-reduce is both",
    whole="{name}: on a ring a rank sends (N−1)/N of the data, since it keeps its own part",
    elements="{name}: that counts numbers, not bytes",
)


@check_of(MISTAKES)
def predict_bytes(check: Check) -> str:
    """Compare with tensors held and collectives made on the check's ranks, and for other sizes."""
    with check.trial() as trial:
        numbers = 12 * trial.size * trial.draw.randrange(50, 300)
        _compare(trial, numbers, trial.size, measured(trial, numbers))
        for ranks in (RANKS, trial.draw.randrange(8, 64)):
            numbers = ranks * trial.draw.randrange(10**4, 10**6)
            _compare(trial, numbers, ranks, by_formula(numbers, ranks))
    return "16Ψ held with and without, 4Ψ + 12Ψ/N sharded; half of the bytes sent"


def _compare(trial: Trial, numbers: int, ranks: int, right: dict[str, float]) -> None:
    trial.situation = f"Ψ = {numbers:,}, N = {ranks}"
    predicted = trial.run(numbers, ranks)
    trial.require(
        lambda: form(predicted, right),
        lambda: misconception(predicted, right, wrong_numbers(right, numbers, ranks)),
        lambda: first_wrong(predicted, right),
    )


def by_formula(numbers: int, ranks: int) -> dict[str, float]:
    ring = 2 * (ranks - 1) / ranks * numbers
    return {
        "held_float32": 16 * numbers,
        "held_mixed": 16 * numbers,
        "held_sharded": 4 * numbers + 12 * numbers / ranks,
        "sent_float32": 4 * ring,
        "sent_mixed": 2 * ring,
        "sent_sharded": 2 * ring,
    }


def measured(trial: Trial, numbers: int) -> dict[str, float]:
    """Bytes of real tensors after a step of Adam, and of real collectives by the ledger."""
    found: dict[str, float] = {}
    for name, dtype, part in (
        ("held_float32", torch.float32, numbers),
        ("held_mixed", torch.float16, numbers),
        ("held_sharded", torch.float16, numbers // trial.size),
    ):
        weight = nn.Parameter(torch.zeros(numbers, dtype=dtype))
        weight.grad = torch.zeros_like(weight)
        updated = weight if dtype is torch.float32 else nn.Parameter(torch.zeros(part))
        optimizer = torch.optim.Adam([updated])
        if updated is not weight:
            updated.grad = torch.zeros_like(updated)
        optimizer.step()
        if updated is not weight:
            updated.grad = None  # gone before the next backward pass
        held = memory.tensor_bytes({weight.detach(), weight.grad, updated.detach()})
        found[name] = held + memory.optimizer_bytes(optimizer) - 4  # Adam's count of steps
    whole, half = torch.zeros(numbers), torch.zeros(numbers, dtype=torch.float16)
    shard = half.chunk(trial.size)[0].clone()
    plans = {
        "sent_float32": [lambda: dist.all_reduce(whole, group=trial.group)],
        "sent_mixed": [lambda: dist.all_reduce(half, group=trial.group)],
        "sent_sharded": [
            lambda: dist.reduce_scatter_single(shard, half, group=trial.group),
            lambda: dist.all_gather_single(half, shard, group=trial.group),
        ],
    }
    for name, plan in plans.items():
        trial.ledger.clear()
        for collective in plan:
            collective()
        found[name] = trial.ledger.ring_bytes()
    return found


def wrong_numbers(right: dict[str, float], numbers: int, ranks: int) -> Iterator[Wrong]:
    split = numbers / ranks
    yield "held_float32", 8 * numbers, MISTAKES.no_states(name="held_float32")
    yield "held_float32", 12 * numbers, MISTAKES.three_of_four()
    yield "held_mixed", 8 * numbers, MISTAKES.half_of_everything(name="held_mixed")
    yield "held_mixed", 10 * numbers, MISTAKES.half_of_everything(name="held_mixed")
    yield "held_mixed", 12 * numbers, MISTAKES.no_master_weights(name="held_mixed")
    yield "held_mixed", 18 * numbers, MISTAKES.gradients_of_32_bits(name="held_mixed")
    yield "held_mixed", 20 * numbers, MISTAKES.gradients_of_32_bits(name="held_mixed")
    # Here held_mixed is right: the parts are known, and the question is which are sharded.
    yield "held_sharded", 2 * numbers + 14 * split, MISTAKES.gradients_sharded()
    yield "held_sharded", 8 * numbers + 8 * split, MISTAKES.master_not_sharded()
    yield "held_sharded", 16 * split, MISTAKES.all_sharded()
    yield "held_sharded", 16 * numbers, MISTAKES.nothing_sharded()
    for name in ("sent_float32", "sent_mixed", "sent_sharded") if ranks > 1 else ():
        yield name, right[name] * ranks / (ranks - 1), MISTAKES.whole(name=name)
        if name != "sent_float32":
            yield name, 2 * right[name], MISTAKES.sent_in_float32(name=name)
        yield name, ranks * right[name], MISTAKES.whole_each_time(name=name)
        yield name, right[name] / 2, MISTAKES.once(name=name)
        yield name, right[name] / (4 if name == "sent_float32" else 2), MISTAKES.elements(name=name)
    yield "sent_sharded", 1.5 * right["sent_sharded"], MISTAKES.gathered_in_float32()
