"""Exercise `predict_bytes`: bytes of tensors after a step of Adam, and of collectives on a ring."""

import torch
from torch import nn

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.costs.collectives import ring_bytes

MISTAKES = Mistakes(
    no_master_weights=(
        "held_mixed: this is too little. Besides the 16-bit numbers, count 4 bytes per parameter "
        "for the master weights and 8 for Adam's moments"
    ),
    gradients_of_32_bits=(
        "held_mixed: this includes float32 gradients. At the end of a backward pass, all gradients "
        "have 16 bits"
    ),
    other_shards=(
        "held_sharded: in stage 1, a rank shards the master weights and states, and keeps all "
        "16-bit weights and gradients"
    ),
    once=(
        "sent_float32: this is half of what an all-reduce sends. It is a reduce-scatter and an "
        "all-gather"
    ),
    whole=(
        "{name}: this sends all the data twice. On a ring, a rank sends (N−1)/N of it twice, "
        "because it keeps its own part"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_bytes(check: Check) -> str:
    """Compare for several numbers of parameters and ranks."""
    with check.trial() as trial:
        sizes = [(n, trial.draw.randrange(10**3, 10**6)) for n in (4, 6, 1)]
        sizes.append((trial.draw.randrange(8, 64), trial.draw.randrange(10**3, 10**6)))
        for _, (ranks, width) in trial.cases({f"Ψ = {n * w:,}, N = {n}": (n, w) for n, w in sizes}):
            numbers = ranks * width
            right = {
                "held_float32": held(numbers, torch.float32, numbers),
                "held_mixed": held(numbers, torch.float16, numbers),
                "held_sharded": held(numbers, torch.float16, width),
                "sent_float32": ring_bytes("all_reduce", 4 * numbers, ranks),
                "sent_mixed": ring_bytes("all_reduce", 2 * numbers, ranks),
                "sent_sharded": ring_bytes("reduce_scatter", 2 * numbers, ranks)
                + ring_bytes("all_gather", 2 * numbers, ranks),
            }
            predicted = trial.run(numbers, ranks)
            require_numbers(
                trial, predicted, right, wrong_numbers(numbers, ranks), "the right number"
            )
    return "16Ψ held with and without, 4Ψ + 12Ψ/N sharded; half of the bytes sent"


def held(numbers: int, dtype: torch.dtype, part: int) -> int:
    """Count the bytes of meta tensors after the second backward pass.

    Adam has `part` of the weights: the weights themselves if they are float32, or float32 copies.
    """
    weights = updated = nn.Parameter(torch.empty(numbers, dtype=dtype, device="meta"))
    if dtype is not torch.float32:
        updated = nn.Parameter(torch.empty(part, device="meta"))
    optimizer = torch.optim.Adam([updated])
    updated.grad = torch.empty_like(updated)
    optimizer.step()
    updated.grad, weights.grad = None, torch.empty_like(weights)
    tensors = [weights.detach(), weights.grad, updated.detach()]
    return memory.tensor_bytes(tensors) + memory.optimizer_bytes(optimizer)


def wrong_numbers(numbers: int, ranks: int) -> list[Wrong]:
    """List what each mistake predicts."""
    part = numbers / ranks
    return [
        ("held_mixed", 8 * numbers, MISTAKES.no_master_weights()),
        ("held_mixed", 10 * numbers, MISTAKES.no_master_weights()),
        ("held_mixed", 12 * numbers, MISTAKES.no_master_weights()),
        ("held_mixed", 18 * numbers, MISTAKES.gradients_of_32_bits()),
        ("held_mixed", 20 * numbers, MISTAKES.gradients_of_32_bits()),
        ("held_sharded", 2 * numbers + 14 * part, MISTAKES.other_shards()),
        ("held_sharded", 8 * numbers + 8 * part, MISTAKES.other_shards()),
        ("sent_float32", 4 * (numbers - part), MISTAKES.once()),
        ("sent_float32", 8 * numbers, MISTAKES.whole(name="sent_float32")),
        ("sent_mixed", 4 * numbers, MISTAKES.whole(name="sent_mixed")),
        ("sent_sharded", 4 * numbers, MISTAKES.whole(name="sent_sharded")),
    ]
