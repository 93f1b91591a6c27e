"""Exercise `stage_1`."""

import copy

from torch import nn

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import uneven_shards
from parlab.checks.trial import Trial
from parlab.checks.zero import training
from parlab.checks.zero.models import awkward_blocks
from parlab.checks.zero.training import SLACK, Expected, Step, sgd

MISTAKES = Mistakes(
    **training.MISTAKES.texts,
    shard_copied=(
        "self.shard has memory of its own beside the whole parameters: nn.Parameter(shard) shares "
        "the buffer's, and a rank holds {got} bytes of parameters where {right} are right"
    ),
    gradient_copied=(
        "the shard's gradient has memory of its own beside self.gradient: a part of it is a view, "
        "and a rank holds {got} bytes of gradients where {right} are right"
    ),
    weights_averaged=(
        "the shards' gradients are right, and the step is an N-th of the right one: weights of all "
        "ranks were averaged. Each rank's shard is right already: gather the shards"
    ),
    sent_too_much=(
        "a rank sends {got:.1f} times its parameters' bytes (on a ring, for large N) where 3 are "
        "enough, and 2 with a reduce-scatter: each thing goes once"
    ),
)


@check_of(MISTAKES)
def stage_1(check: Check) -> str:
    """Check steps of SGD and Adam on uneven and empty shards, what is held, and what is sent."""
    for trial, make_optimizer in training.trials(check):
        _three_steps(trial, make_optimizer)
    return (
        "the steps of one rank with all samples, for SGD and Adam, on 1 to "
        f"{check.world_size} ranks; each holds the states of its shard; no more than 3Ψ is sent"
    )


def _three_steps(trial: Trial, make_optimizer: training.MakeOptimizer) -> None:
    model = awkward_blocks(trial.draw, trial.rank)
    start = trial.gather(copy.deepcopy(model))[0]
    (own,) = _own(start)
    uneven = uneven_shards(trial.draw, trial.size)
    data, totals, mine = training.planned(
        trial, start, [[uneven[0]], [uneven[-1]], [uneven[0], uneven[0]]]
    )
    # Before the learner's turn: torch imports much at a first step, and that takes its time.
    expectations = training.expect(training.Serial(start, [own], make_optimizer), data, totals)
    steps = trial.run_function(
        training.train,
        trial,
        model,
        _own(model),
        model,
        make_optimizer,
        mine,
        totals,
        False,
        seconds=training.SECONDS,
        explain=training.no_gradient,
    )
    situation, sizes = trial.situation, [sum(p.numel() for p in own)]
    frozen = start.frozen.weight.nbytes
    for number, expected in enumerate(expectations):
        trial.situation = f"{situation}, step {number + 1}"
        step = steps[number] if steps else None
        trial.require(lambda: training.shard_lengths(step.shards, sizes, trial.size))
        everyone = trial.gather((step.shards, step.shard_gradients) if step else None)
        together = training.assembled([s for s, _ in everyone], sizes)
        gradients = training.assembled([g for _, g in everyone], sizes)
        trial.require(
            lambda: training.states_of_shards(step, -(-sizes[0] // trial.size), 1),
            lambda: memory(step, sizes[0], trial.size, frozen),
            lambda: stepped(together, gradients, expected, make_optimizer is sgd),
            lambda: training.values_are(together, expected.after, "the {}", ["parameters"]),
            lambda: training.weights_are(step, expected, trial, ["parameters"]),
            lambda: sent(step, sizes[0], trial.size),
        )


def _own(model: nn.Module) -> list[list[nn.Parameter]]:
    """One unit: the whole model."""
    return [[p for p in model.parameters() if p.requires_grad]]


def memory(step: Step, numbers: int, ranks: int, frozen: int) -> Finding | None:
    right = 8 * -(-numbers // ranks) * ranks
    if step.held.parameters - frozen > SLACK * right:
        return MISTAKES.shard_copied(got=step.held.parameters - frozen, right=right)
    if step.held.gradients > SLACK * right:
        return MISTAKES.gradient_copied(got=step.held.gradients, right=right)
    return None


def stepped(together: list, gradients: list, expected: Expected, is_sgd: bool) -> Finding | None:
    """What a step of SGD went along, instead of the summed gradient."""
    if not is_sgd:
        return None
    taken = [(a - b) / training.RATE for a, b in zip(expected.before, together, strict=True)]
    found = training.along(taken, expected)
    averaged = found is not None and found.mistake == "averaged_again"
    if averaged and training.all_same(gradients, expected.gradient):
        return MISTAKES.weights_averaged()
    return found


def sent(step: Step, numbers: int, ranks: int) -> Finding | None:
    if ranks == 1:
        return None
    once = 8 * -(-numbers // ranks) * (ranks - 1)
    if step.ring_bytes > 3 * SLACK * once:
        return MISTAKES.sent_too_much(got=step.ring_bytes / once)
    return None
