"""Exercise `stage_3`."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from parlab import memory
from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.checks.zero import training
from parlab.checks.zero.models import Blocks, Chain, awkward_blocks
from parlab.checks.zero.stage_2 import instead, none_left, own_memory
from parlab.checks.zero.training import SLACK, Expected, MakeOptimizer, Step
from parlab.sharding import own_parameters

MISTAKES = Mistakes(
    not_whole_forward=(
        "a layer's forward pass begins while its parameters are freed: gather them in "
        "before_forward"
    ),
    not_whole_backward=(
        "a layer's backward pass begins while its parameters are freed: after the forward pass "
        "they are gathered a second time, in before_backward"
    ),
    kept_after_forward=(
        "in the forward pass a rank holds {got} bytes of parameters, where its shards, the model's "
        "own and the largest block are {right}: gathered, and not freed after the layer's pass"
    ),
    kept_after_backward=(
        "in the backward pass a rank holds {got} bytes of parameters, where its shards, the "
        "model's own and the largest block are {right}: free a layer when it is reduced"
    ),
    kept_between=(
        "between the forward pass and the backward pass a rank holds {got} bytes of parameters, "
        "where its shards have {right}: no layer computes then, and none is to be whole"
    ),
    other_memory=(
        "what a layer computes with has no memory: the parameters are views of the buffer that "
        "`unit.flat` was at first. Give that one its bytes back; a new tensor is not what they see"
    ),
    kept_after_step=(
        "between two steps a rank holds {got} bytes of parameters, where its shards have {right}: "
        "nothing is to stay gathered"
    ),
    not_reduced=(
        "the shards' gradients are zero: reduce() frees the parameters, but what stage 2 does "
        "there is to be done as well"
    ),
    sent_too_much=(
        "a rank sends {got:.1f} times its parameters' bytes (on a ring, for large N) where 3 are "
        "enough: a gather for each pass, and a reduce-scatter"
    ),
)


@check_of(MISTAKES)
def stage_3(check: Check) -> str:
    """Check what is whole and when, what is sent, and steps of SGD and Adam."""
    for trial, make_optimizer in training.trials(check):
        _two_steps(trial, make_optimizer)
    return (
        "a rank holds its shards and one layer at a time; the steps are those of one rank, for "
        f"SGD and Adam, on 1 to {check.world_size} ranks; three times the parameters are sent"
    )


def _two_steps(trial: Trial, make_optimizer: MakeOptimizer) -> None:
    """The second step has two backward passes."""
    steps, expectations, sizes, frozen = run(trial, make_optimizer)
    situation = trial.situation
    for number, expected in enumerate(expectations):
        trial.situation = f"{situation}, step {number + 1}"
        step = steps[number] if steps else None
        most = shard_bytes(sizes, trial.size) + 8 * trial.size * (
            -(-sizes[0] // trial.size) + -(-max(sizes[1:]) // trial.size)
        )
        trial.require(
            lambda: whole_too_long(step, "forward", most, frozen),
            lambda: whole_too_long(step, "backward", most, frozen),
            lambda: whole_too_long(step, "between", shard_bytes(sizes, trial.size), frozen),
            lambda: after_step(step, shard_bytes(sizes, trial.size), frozen),
        )
        values(trial, step, expected, sizes)
        trial.require(lambda: sent(step, sizes, trial.size, passes=number + 1))


def run(
    trial: Trial,
    make_optimizer: MakeOptimizer,
    note: Callable[[Trial, Blocks], None] | None = None,
    make_model: Callable[..., Blocks | Chain] = awkward_blocks,
) -> tuple[list[Step] | None, list[Expected], list[int], int]:
    """Two steps on this rank, the second of two passes, and what they should be.

    Also the numbers of parameters of each unit, and the bytes of frozen ones. `note` may register
    hooks of its own.
    """
    model = make_model(trial.draw, trial.rank)
    start = trial.gather(copy.deepcopy(model))[0]
    own = [parameters for _, parameters in own_parameters(start.used_layers)]
    samples = trial.draw.sample(range(1, 2 * trial.size + 2), trial.size)
    data, totals, mine = training.planned(trial, start, [[samples], [samples, samples[::-1]]])

    # Before the learner's turn: torch imports much at a first step, and that takes its time.
    expectations = training.expect(training.Serial(start, own, make_optimizer), data, totals)

    def watch(stage: Any) -> dict[str, int]:
        most = watch_parameters(model, stage)
        if note is not None:
            note(trial, model)
        return most

    steps = trial.run_function(
        training.train,
        trial,
        model,
        [parameters for _, parameters in own_parameters(model.used_layers)],
        model.used_layers,
        make_optimizer,
        mine,
        totals,
        True,
        watch,
        seconds=training.SECONDS,
        explain=not_whole,
    )
    sizes = [sum(p.numel() for p in unit) for unit in own]
    frozen = sum(p.nbytes for p in start.parameters() if not p.requires_grad)
    return steps, expectations, sizes, frozen


def not_whole(endings: dict[int, Ended]) -> Finding | None:
    """The frame refuses to compute with what was freed."""
    for ended in endings.values():
        for which in ("forward", "backward"):
            if f"a {which} pass begins" in ended.error:
                return getattr(MISTAKES, f"not_whole_{which}")()
        if "for storage of size 0" in ended.error:
            return MISTAKES.other_memory()
    return training.no_gradient(endings)


def watch_parameters(model: Blocks, stage: Any) -> dict[str, int]:
    """The most bytes of parameters on this rank within the passes, and between the two."""
    most = {"forward": 0, "backward": 0, "between": 0}

    def look(which: str) -> None:
        held = memory.tensor_bytes(t.detach() for t in [*model.parameters(), *stage.shards])
        most[which] = max(most[which], held)

    def around(layer: nn.Module, given: Any, output: Tensor) -> None:
        look("forward")
        if output.requires_grad:
            output.register_hook(lambda _: look("backward"))

    for layer in model.modules():
        layer.register_forward_pre_hook(lambda *_: look("forward"))
        layer.register_forward_hook(around)
    model.register_forward_hook(lambda *_: look("between"))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: look("backward"))
    return most


def shard_bytes(sizes: list[int], ranks: int) -> int:
    return sum(8 * -(-size // ranks) for size in sizes)


def whole_too_long(step: Step, which: str, right: int, frozen: int) -> Finding | None:
    got = step.most[which] - frozen
    if got > SLACK * right:
        if which == "between":
            return MISTAKES.kept_between(got=got, right=right)
        return getattr(MISTAKES, f"kept_after_{which}")(got=got, right=right)
    return None


def after_step(step: Step, right: int, frozen: int) -> Finding | None:
    """To the byte: a storage with any at all would pass for a whole one."""
    got = step.held.parameters - frozen
    if got > right:
        return MISTAKES.kept_after_step(got=got, right=right)
    return None


def values(
    trial: Trial, step: Step | None, expected: Expected, sizes: list[int], nested: bool = True
) -> None:
    """Gradients and parameters, put together from all ranks' shards."""
    names = [f"layer {i}'s" for i in range(len(sizes))]
    if nested:
        names = ["model's own", *(f"block {i}'s" for i in range(len(sizes) - 1))]
    trial.require(lambda: training.shard_lengths(step.shards, sizes, trial.size))
    everyone = trial.gather((step.shards, step.shard_gradients) if step else None)
    gradients = training.assembled([g for _, g in everyone], sizes)
    together = training.assembled([s for s, _ in everyone], sizes)
    trial.require(
        lambda: nothing_reduced(gradients),
        lambda: none_left(step),
        lambda: instead(gradients, expected),
        lambda: training.values_are(
            gradients, expected.gradient, "the {} gradient, from all shards,", names
        ),
        lambda: own_memory(step, sizes, trial.size),
        lambda: training.values_are(
            together, expected.after, "of the {} parameters, from all shards, the value", names
        ),
    )


def nothing_reduced(gradients: list[Tensor]) -> Finding | None:
    return None if any(g.any() for g in gradients) else MISTAKES.not_reduced()


def sent(step: Step, sizes: list[int], ranks: int, passes: int) -> Finding | None:
    if ranks == 1:
        return None
    once = sum(8 * -(-size // ranks) * (ranks - 1) for size in sizes)
    if step.ring_bytes > 3 * SLACK * passes * once:
        return MISTAKES.sent_too_much(got=step.ring_bytes / passes / once)
    if any(event.op not in ("", "all_gather", "reduce_scatter") for event in step.events):
        return evidence("all-gathers and reduce-scatters are all that a step needs")
    return None
