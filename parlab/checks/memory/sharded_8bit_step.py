"""Exercise `sharded_8bit_step`: 8-bit Adam on one rank with all samples is the reference."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only
from parlab.checks.base.models import Shard
from parlab.checks.base.trial import Trial
from parlab.checks.memory._sharded import (
    LR,
    Serial,
    Small,
    checkpointed,
    drawn_model,
    drawn_samples,
    layers_restored,
    loss_of,
    set_vector,
    vector,
)
from parlab.ledger.ledger import ring_bytes_sent

STEPS = 3
SECONDS = 10.0  # on a busy machine, the ranks may meet late
SLACK = 1.02  # for bytes
REDUCTIONS = ("reduce_scatter", "all_reduce", "reduce")

MISTAKES = Mistakes(
    reduced_twice=(
        "in a step, the ranks reduce {times:.1f} times as many numbers as there are gradients. "
        "Reduce each gradient once, after the backward pass: a hook that a checkpointed forward "
        "pass registers is registered twice"
    ),
    not_checkpointed=(
        "a forward pass keeps {got} bytes for the backward pass, expected at most {right}. "
        "Checkpoint each of the layers"
    ),
    states_of_everything=(
        "`self.state` takes {got} bytes, expected {right}: the codes and the absmax of one shard"
    ),
    not_summed="each shard moves along the gradient of its own rank's samples. Sum over the ranks",
    averaged_again=(
        "the gradients are averaged, but the loss already contains the weights of the mean. Sum "
        "them, and do not divide by N"
    ),
    not_gathered=(
        "after step(), the model's weights are new in this rank's shard only. Gather the shards"
    ),
)
BLOCK_SIZES = {"blocks of 16": 16, "blocks of 64": 64}


@check_of(MISTAKES)
def sharded_8bit_step(check: Check) -> str:
    """Check three steps with uneven shards of samples, what a rank keeps, and what it sends."""
    for number, trial in enumerate(check.trials()):
        names = list(BLOCK_SIZES) if number == 0 else [list(BLOCK_SIZES)[number % 2]]
        for _, block_size in trial.cases({name: BLOCK_SIZES[name] for name in names}):
            with layers_restored():
                _train(trial, block_size, detached=number % 2 == 1)
    return (
        f"the steps of one rank with all samples, on 1 to {check.world_size} ranks; a forward pass "
        "keeps the layers' inputs; shards have whole blocks of 8-bit states; reduced once"
    )


def _train(trial: Trial, block_size: int, detached: bool) -> None:
    model = drawn_model(trial.draw, max(trial.rank, 0))
    model.detached = detached
    start = trial.gather(vector(model))[0]
    frozen = copy.deepcopy(model.frozen.state_dict())
    twin = copy.deepcopy(model)
    set_vector(twin, start)
    serial, live = Serial(twin, block_size), memory.LiveStorages()
    [some] = drawn_samples(trial.draw, model, 1)
    _steps_of_torch(checkpointed(twin), some)
    kept_by_twin = saved_bytes(twin, some, 1)[1]
    with live:
        optimizer = trial.run(
            *(model, iter(model.layers), LR, trial.group, block_size), seconds=SECONDS
        )
    trial.require(
        lambda: equal(vector(model), start, "after __init__(), the vector of all parameters"),
        lambda: constructed(optimizer, len(start), block_size, trial.size),
        lambda: only_these_layers(saved_bytes(twin, some, 1)[1], kept_by_twin),
    )
    padded = -(-len(start) // (trial.size * block_size)) * trial.size * block_size
    situation = trial.situation
    for step in range(1, STEPS + 1):
        samples = drawn_samples(trial.draw, model, trial.size)
        total = sum(len(inputs) for inputs, _ in samples)
        local = [serial.gradient(one, total) for one in samples]
        own = samples[max(trial.rank, 0)]
        limit = saved_bytes(checkpointed(twin), own, total)[1]
        taken = trial.run_function(
            partial(stepped, live, optimizer, model, own, total, step == 2), seconds=SECONDS
        )
        dirty = ", after another backward pass" if step == 2 else ""
        trial.situation = f"{situation}, step {step}{dirty}"
        trial.require(
            lambda: is_checkpointed(taken.saved, limit),
            lambda: reduced_once(trial, 4 * padded),
            lambda: weights_are_right(vector(model), serial, local, padded, trial),
            lambda: equal(model.frozen.weight, frozen["weight"], "the frozen weight"),
            lambda: sends_no_more(trial, 4 * padded),
            lambda: holds_no_more(taken, padded // trial.size, block_size, trial.size),
        )
        trial.situation = situation
        serial.step(sum(local))


def _steps_of_torch(model: Small, samples: Shard) -> None:
    """Make PyTorch import what it needs to recompute, because the learner's time is limited."""
    with memory.LiveStorages():
        loss_of(model, samples, 1).backward()


def saved_bytes(model: Small, samples: Shard, total: int) -> tuple[Tensor, int]:
    with memory.Saved(model) as saved:
        loss = loss_of(model, samples, total)
    return loss, saved.bytes


@dataclass
class Taken:
    """The bytes that the learner's step leaves in memory."""

    saved: int  # bytes that the forward pass kept
    states: int  # bytes of self.state
    blocks: int  # of self.state["m"]
    live: int  # bytes of all tensors since __init__()


def stepped(
    live: memory.LiveStorages,
    optimizer: Any,
    model: Small,
    samples: Shard,
    total: int,
    dirty: bool,
) -> Taken:
    """Take a step. If `dirty`, first leave the gradients of another backward pass."""
    with live:
        if dirty:
            loss_of(model, samples, total).backward()
        loss, saved = saved_bytes(model, samples, total)
        optimizer.step(loss)
        del loss
    states = [leaf for leaf in tree_leaves(optimizer.state) if isinstance(leaf, Tensor)]
    blocks = len(optimizer.state["m"][1]) if "m" in optimizer.state else 0
    return Taken(saved, memory.tensor_bytes(states), blocks, live.live)


def constructed(optimizer: Any, numbers: int, block_size: int, ranks: int) -> Finding | None:
    """Require shards of whole blocks, as small as possible."""
    length, right = len(optimizer.shard), -(-numbers // (ranks * block_size)) * block_size
    if length == right and len(optimizer.flat) == ranks * right:
        return None
    return observed(
        f"self.shard has {length} numbers and self.flat {len(optimizer.flat)}, expected {right} "
        f"and {ranks * right}: the smallest multiple of N · block_size that holds all trainable "
        "parameters, and no others"
    )


def only_these_layers(got: int, right: int) -> Finding | None:
    if got == right:
        return None
    return observed(
        f"layers of another model of the same class keep {got} bytes, and kept {right} before. "
        "Replace `forward` of the modules in `layers`, not of their class"
    )


def is_checkpointed(got: int, right: int) -> Finding | None:
    return MISTAKES.not_checkpointed(got=got, right=right) if got > SLACK * right else None


def reduced_once(trial: Trial, size: int) -> Finding | None:
    calls = trial.calls[trial.rank]
    times = sum(call.bytes for call in calls if call.op in REDUCTIONS) / size
    return MISTAKES.reduced_twice(times=times) if times > 1.4 else None


def weights_are_right(
    got: Tensor, serial: Serial, local: list[Tensor], padded: int, trial: Trial
) -> Finding | None:
    """Compare the model's weights with the reference's, and with those of mistakes.

    One percent of the weights may differ, because a sum in another order may move a moment past the
    middle of two levels. `local` has the gradients of each rank's samples.
    """
    start, wanted = vector(serial.model), serial.moved(sum(local))[0]
    if alike(got, wanted):
        return None
    width = padded // trial.size
    shards = [slice(rank * width, (rank + 1) * width) for rank in range(trial.size)]
    only_own, own = start.clone(), shards[trial.rank]
    only_own[own] = wanted[own]
    not_summed = torch.cat([g[part] for g, part in zip(local, shards, strict=True)])
    variants = {
        "not_gathered": only_own,
        "not_summed": serial.moved(not_summed)[0],
        "averaged_again": serial.moved(sum(local) / trial.size)[0],
    }
    unlike = {key: values for key, values in variants.items() if not alike(wanted, values)}
    if mistake := the_only(MISTAKES, (key for key in unlike if alike(got, unlike[key]))):
        return mistake
    wrong = different(got, wanted).nonzero().flatten()
    at = int(wrong[0])
    return observed(
        f"in the model, the weight at index {at} of all trainable ones moves by "
        f"{(got[at] - start[at]).item():.5g}, expected {(wanted[at] - start[at]).item():.5g} "
        f"({len(wrong)} of {len(wanted)} differ)"
    )


def different(got: Tensor, right: Tensor) -> Tensor:
    return ~((got - right).abs() <= 0.002 * LR)


def alike(got: Tensor, right: Tensor) -> bool:
    return different(got, right).double().mean().item() <= 0.01


def sends_no_more(trial: Trial, size: int) -> Finding | None:
    """Allow the bytes of a reduce-scatter and an all-gather."""
    right = 2 * size * (trial.size - 1) / trial.size
    got = ring_bytes_sent(trial.calls[trial.rank])
    if got <= SLACK * right + 64:
        return None
    calls = ", ".join(call.api for call in trial.calls[trial.rank])
    return observed(
        f"in a step, a rank sends {got:.0f} bytes (on a ring), expected at most {right:.0f}. The "
        f"calls are {calls}"
    )


def holds_no_more(taken: Taken, shard: int, block_size: int, ranks: int) -> Finding | None:
    """Allow both buffers, two codes for each number of the shard, and two absmax for each block."""
    states = 2 * shard + 8 * shard // block_size
    if taken.states > SLACK * states + 64:
        return MISTAKES.states_of_everything(got=taken.states, right=states)
    if taken.blocks != shard // block_size:
        return observed(
            f'self.state["m"] has {taken.blocks} blocks, expected {shard // block_size} of '
            f"{block_size} numbers"
        )
    right = 8 * shard * ranks + states
    # A buffer of a shard's size may receive the sum of the gradients.
    if taken.live <= right + 4 * shard + 4096:
        return None
    return observed(
        f"after a step, {taken.live} bytes of new tensors are alive, expected {right}: two "
        "buffers and the states. Keep no copy"
    )
