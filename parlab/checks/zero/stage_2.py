"""Exercise `stage_2`."""

import copy
from typing import Any

from torch import nn

from parlab import memory
from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import uneven_shards
from parlab.checks.trial import Trial
from parlab.checks.zero import training
from parlab.checks.zero.models import awkward_blocks
from parlab.checks.zero.training import SLACK, Expected, Step
from parlab.sharding import own_parameters

MISTAKES = Mistakes(
    **{
        key: text
        for key, text in training.MISTAKES.texts.items()
        if key != "full_states"  # the frame makes the optimizer
    },
    gradients_kept=(
        "{name} still has its .grad after finish(): a reduced gradient is to be freed, or every "
        "rank holds all gradients as before"
    ),
    freed_late=(
        "in the middle of the backward pass a rank holds {got} bytes of its parameters' gradients, "
        "where no layer has more than {right}: free each unit's when it is reduced, not at the end"
    ),
    whole_kept=(
        "the shard's gradient keeps {got} bytes alive where its own {right} are enough: a view "
        "keeps the whole buffer. Let the result of the reduce-scatter have memory of its own"
    ),
    buffer_kept=(
        "after finish() the stage and its units keep {got} bytes of tensors beside weights and "
        "shards: of what was reduced or gathered the shards are to stay, no buffer and no copy"
    ),
    overwritten=(
        "after two backward passes the shards hold the gradient of the last one: add to "
        "unit.shard.grad, as backward() adds to .grad"
    ),
    all_reduced=(
        "an all-reduce gives every rank the whole sum, and of that it needs a shard: a "
        "reduce-scatter sends half as much"
    ),
)


@check_of(MISTAKES)
def stage_2(check: Check) -> str:
    """Check gradients, what is held during the backward pass, what is sent, and the steps."""
    for trial, make_optimizer in training.trials(check):
        _three_steps(trial, make_optimizer)
    return (
        "gradients are summed, sharded and freed while the backward pass goes on; the steps are "
        f"those of one rank, for SGD and Adam, on 1 to {check.world_size} ranks"
    )


def _three_steps(trial: Trial, make_optimizer: training.MakeOptimizer) -> None:
    """In the second step a rank may have no samples; the third has two backward passes."""
    model = awkward_blocks(trial.draw, trial.rank)
    start = trial.gather(copy.deepcopy(model))[0]
    own = [parameters for _, parameters in own_parameters(start.layers)]
    uneven = uneven_shards(trial.draw, trial.size)
    data, totals, mine = training.planned(
        trial, start, [[uneven[0]], [uneven[-1]], [uneven[0], uneven[0]]]
    )
    # Before the learner's turn: torch imports much at a first step, and that takes its time.
    expectations = training.expect(training.Serial(start, own, make_optimizer), data, totals)
    most: dict[str, int] = {}
    watch_gradients(model, most)
    steps = trial.run_function(
        training.train,
        trial,
        model,
        [parameters for _, parameters in own_parameters(model.layers)],
        model.layers,
        make_optimizer,
        mine,
        totals,
        True,
        lambda stage: most,
        seconds=training.SECONDS,
        explain=training.no_gradient,
    )
    sizes = [sum(p.numel() for p in unit) for unit in own]
    names = ["model's own", *(f"layer {i}'s" for i in range(1, len(own)))]
    situation = trial.situation
    for number, expected in enumerate(expectations):
        trial.situation = f"{situation}, step {number + 1}"
        step = steps[number] if steps else None
        trial.require(lambda: training.shard_lengths(step.shards, sizes, trial.size))
        everyone = trial.gather((step.shards, step.shard_gradients) if step else None)
        gradients = training.assembled([g for _, g in everyone], sizes)
        together = training.assembled([s for s, _ in everyone], sizes)
        trial.require(
            lambda: none_left(step),
            lambda: freed(step, 8 * max(sizes)),
            lambda: instead(gradients, expected),
            lambda: training.values_are(
                gradients, expected.gradient, "the {} gradient, from all shards,", names
            ),
            lambda: reduced_once(step, sizes, trial.size, passes=len(data[number])),
            lambda: own_memory(step, sizes, trial.size),
            lambda: training.values_are(
                together, expected.after, "of the {} parameters, from all shards, the value", names
            ),
            lambda: training.weights_are(step, expected, trial, names),
        )


def watch_gradients(model: nn.Module, most: dict[str, int]) -> None:
    """Note in `most` the most bytes of gradients that parameters have when one is complete."""
    most["gradients"] = 0
    parameters = [p for p in model.parameters() if p.requires_grad]

    def note(_: Any) -> None:
        bytes_now = memory.tensor_bytes(p.grad for p in parameters if p.grad is not None)
        most["gradients"] = max(most["gradients"], bytes_now)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(note)


def none_left(step: Step) -> Finding | None:
    if step.gradients_left:
        return MISTAKES.gradients_kept(name=step.gradients_left[0])
    return None


def freed(step: Step, largest: int) -> Finding | None:
    """A tied weight may be complete before its unit is; no more than two layers' are on the way."""
    if step.most["gradients"] > 2 * largest:
        return MISTAKES.freed_late(got=step.most["gradients"], right=largest)
    return None


def instead(gradients: list, expected: Expected) -> Finding | None:
    found = training.along(gradients, expected)
    right = training.all_same(gradients, expected.gradient)
    if found is None and not right and training.all_same(gradients, expected.last_pass):
        return MISTAKES.overwritten()
    return found


def reduced_once(step: Step, sizes: list[int], ranks: int, passes: int) -> Finding | None:
    starts = [event for event in step.events if event.kind == "start"]
    if any(event.op == "all_reduce" for event in starts):
        return MISTAKES.all_reduced()
    scattered = [event for event in starts if event.op == "reduce_scatter"]
    if len(scattered) != passes * len(sizes):
        return evidence(
            f"{len(scattered)} reduce-scatters where {passes * len(sizes)} are right: one for "
            "each unit in each backward pass"
        )
    if ranks == 1:
        return None
    once = sum(8 * -(-size // ranks) * (ranks - 1) for size in sizes)
    if step.ring_bytes > SLACK * (passes + 1) * once:
        return evidence(
            f"a rank sends {step.ring_bytes:.0f} bytes in the step (on a ring) where "
            f"{(passes + 1) * once} are enough"
        )
    return None


def own_memory(step: Step, sizes: list[int], ranks: int) -> Finding | None:
    right = sum(8 * -(-size // ranks) for size in sizes)
    if ranks > 1 and step.held.gradients > SLACK * right:
        return MISTAKES.whole_kept(got=step.held.gradients, right=right)
    if ranks > 1 and step.kept > SLACK * right:
        return MISTAKES.buffer_kept(got=step.kept)
    return None
