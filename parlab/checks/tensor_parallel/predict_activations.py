"""Exercise `predict_activations`."""

import torch

from parlab import memory, models
from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.predictions import first_wrong, form, is_number
from parlab.costs import tensor_parallel as costs

SLACK = 0.05  # of what is measured: the norms' means, attention's sums

MISTAKES = Mistakes(
    all_cut=(
        "tensor_parallel: that cuts everything. The inputs of the norms, and of the two layers cut "
        "by columns, lie outside f and g: they are whole on every rank"
    ),
    norms_only=(
        "tensor_parallel: the inputs of the two layers cut by columns are whole on every rank, "
        "too, and not only those of the norms"
    ),
    gathered_kept=(
        "sequence_parallel: the inputs of the two layers cut by columns are gathered, but only the "
        "shard is kept: the rest is gathered again"
    ),
    not_cut="{name}: that is what one rank keeps of the serial block",
    elements="{name}: that counts numbers. A float32 takes 4 bytes",
    sixteen_bit="{name}: that has 2 bytes for each number. A float32 takes 4",
    hidden_once=(
        "{name}: what the MLP keeps at 4h is two things: the input of the GELU, and its output, "
        "which the second layer takes"
    ),
    hidden_as_h=(
        "{name}: the input of the GELU and its output are 4h wide, and count four times each"
    ),
    attention_kept=(
        "{name}: Q, K and V are three, and attention's output is one: that many numbers are left "
        "out or counted twice"
    ),
)


@check_of(MISTAKES)
def predict_activations(check: Check) -> str:
    """Compare with the formulas; the serial block is also measured."""
    with check.trial() as trial:
        for ranks in (8, trial.draw.randrange(3, 17), 1):
            batch, sequence = trial.draw.randrange(2, 5), ranks * trial.draw.randrange(3, 9)
            hidden = 64 * trial.draw.randrange(1, 3)
            trial.situation = f"batch {batch}, sequence {sequence}, hidden {hidden}, N = {ranks}"
            predicted = trial.run(batch, sequence, hidden, ranks)
            right = costs.block_in_numbers(batch, sequence, hidden, ranks, 4)
            seen = measured(batch, sequence, hidden)
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, ranks),
                lambda: first_wrong(predicted, right),
                lambda: as_measured(predicted["serial"], seen),
            )
    return "16 numbers a token and hidden unit; 4 + 12/N with tensor parallelism; 16/N with both"


def measured(batch: int, sequence: int, hidden: int) -> int:
    """What autograd keeps of the serial block, in bytes."""
    config = models.GPTConfig(sequence_length=sequence, hidden_size=hidden, heads=4)
    block = models.Block(config)
    with memory.Saved(block) as saved:
        block(torch.zeros(batch, sequence, hidden, requires_grad=True))
    return saved.bytes


def as_measured(predicted: float, seen: int) -> Finding | None:
    if not abs(predicted - seen) <= SLACK * seen:
        return evidence(f"serial: you predicted {predicted}, and a block keeps {seen} bytes")
    return None


def misconception(
    predicted: dict[str, float], right: dict[str, float], ranks: int
) -> Finding | None:
    for name, value in right.items():
        if is_number(predicted[name], value / 4) and ranks != 4:
            return MISTAKES.elements(name=name)
        if is_number(predicted[name], value / 2) and ranks != 2:
            return MISTAKES.sixteen_bit(name=name)
    once = right["serial"] / 16
    if is_number(predicted["serial"], 15 * once) or is_number(predicted["serial"], 17 * once):
        return MISTAKES.attention_kept(name="serial")
    if is_number(predicted["serial"], 12 * once):
        return MISTAKES.hidden_once(name="serial")
    if is_number(predicted["serial"], 10 * once):
        return MISTAKES.hidden_as_h(name="serial")
    if ranks == 1:
        return None
    if is_number(predicted["tensor_parallel"], 16 * once / ranks):
        return MISTAKES.all_cut()
    if is_number(predicted["tensor_parallel"], 2 * once + 14 * once / ranks):
        return MISTAKES.norms_only()
    if is_number(predicted["sequence_parallel"], 2 * once + 14 * once / ranks):
        return MISTAKES.gathered_kept()
    for name in ("tensor_parallel", "sequence_parallel"):
        if is_number(predicted[name], right["serial"]):
            return MISTAKES.not_cut(name=name)
    return None
