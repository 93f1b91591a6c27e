"""Exercise `flat_step`."""

from collections.abc import Iterator
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parlab.checks.check import Check, check_of
from parlab.checks.compare import instead, is_a, same, same_states
from parlab.checks.data_parallel import sums
from parlab.checks.data_parallel.models import A_FLOAT, Awkward, awkward_model, gradients_of
from parlab.checks.data_parallel.sums import WeightedSum
from parlab.checks.messages import no_pickles, something_sent
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import (
    TOLERANCE,
    Shard,
    State,
    add,
    gradients,
    loss_sum,
    state_of,
    tokens,
    trainable,
    uneven_shards,
)
from parlab.checks.trial import Trial

RATE = 0.5

MISTAKES = Mistakes(
    **sums.MISTAKES.texts,
    left_the_buffer=(
        "the gradient of {name} is no longer in the buffer: optimizer.zero_grad() sets gradients "
        "to None, and backward() makes new ones elsewhere. Zero the buffer in place"
    ),
    not_zeroed=(
        "the step went along the gradient plus what was in the buffer before the call: backward() "
        "adds to what is there, so zero the buffer first"
    ),
    step_before_sum=(
        "the buffer holds the sum, but the weights took a step along the rank's own gradient: "
        "all-reduce before optimizer.step()"
    ),
    no_step="no weight has changed: is optimizer.step() missing?",
    many_steps="optimizer.step() was called {got} times where once is right",
    many_messages="{got} messages: the whole buffer goes in one all-reduce, and no other",
    loss_of_ranks=(
        "each rank returns the mean loss over its own samples: times len(inputs) / total it is its "
        "part of the global mean"
    ),
    loss_after="the returned loss is that after the step: the loss before it is asked for",
    whole_loss="each rank returns the whole mean loss, not its part: the parts must add up to it",
)


@check_of(MISTAKES)
def flat_step(check: Check) -> str:
    """Check two steps of SGD, on uneven and empty shards, on 1, 2, … ranks."""
    for trial in check.trials():
        for samples in uneven_shards(trial.draw, trial.size):
            model = awkward_model(trial.draw)
            flat = _flat(model)
            flat.fill_(trial.draw.uniform(1, 2))  # whatever the step before has left there
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for step in (1, 2):
                trial.situation = f"step {step}, samples on the ranks: {samples}"
                _one_step(trial, model, flat, optimizer, samples)
    return (
        "the step of the full gradient on every rank, with one message, whatever was in the "
        "buffer, for uneven and empty shards"
    )


def _one_step(
    trial: Trial,
    model: Awkward,
    flat: Tensor,
    optimizer: torch.optim.Optimizer,
    samples: list[int],
) -> None:
    shards = [tokens(trial.draw, model, n) for n in samples]
    full = WeightedSum([gradients(model, *shard) for shard in shards], samples)
    losses = _losses(model, shards)
    before, left = state_of(model), gradients_of(model)
    steps: list[int] = []
    hook = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    part = trial.run(model, flat, optimizer, *shards[trial.rank], sum(samples), trial.comm)
    hook.remove()
    everyone = trial.gather(_taken(before, state_of(model)))
    mine = everyone[trial.rank]
    after = _losses(model, shards)
    trial.require(
        lambda: is_a(part, Real, A_FLOAT),
        lambda: something_sent(trial),
        lambda: besides_the_buffer(trial, flat),
        lambda: no_pickles(trial),
        lambda: in_the_buffer(flat, model),
        lambda: stepped(len(steps), mine, full.right, gradients_of(model)),
        lambda: full.instead(everyone),
        lambda: not_zeroed(everyone, left, full.right),
        lambda: full.equals(mine, "lr·(step of {})"),
        lambda: one_message(trial),
    )
    parts = trial.gather(part)
    trial.require(
        lambda: other_losses(parts, losses, after, full.shares),
        lambda: sums.loss_parts(parts, sum(losses)),
    )


def _losses(model: nn.Module, shards: list[Shard]) -> list[float]:
    """The ranks' parts of the mean loss over the global batch."""
    total = sum(len(inputs) for inputs, _ in shards)
    return [loss_sum(model, *shard) / total for shard in shards]


def _taken(before: State, after: State) -> State:
    """The gradient that the weights have followed."""
    names = [name for name in before if name not in ("frozen.weight", "scale", "seen", "shift")]
    return {name: (before[name] - after[name]) / RATE for name in names}


def _flat(model: Awkward) -> Tensor:
    """The buffer that exercise `flat_gradients` asks for."""
    parameters = list(trainable(model).values())
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    flat = torch.zeros_like(parameters_to_vector(parameters)).detach()
    vector_to_parameters(flat, (p.grad for p in parameters))
    return flat


def in_the_buffer(flat: Tensor, model: nn.Module) -> Finding | None:
    first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for name, parameter in trainable(model).items():
        if parameter.grad is None or not first <= parameter.grad.data_ptr() < last:
            return MISTAKES.left_the_buffer(name=name)
    return None


def stepped(steps: int, taken: State, right: State, now: State) -> Finding | None:
    if not steps and same_states(taken, add([right], [0.0]), 0.0):
        return MISTAKES.no_step()
    if steps > 1:
        return MISTAKES.many_steps(got=steps)
    if same_states(now, right, TOLERANCE) and not same_states(taken, right, TOLERANCE):
        return MISTAKES.step_before_sum()
    return None


def not_zeroed(everyone: list[State], left: State, right: State) -> Finding | None:
    """Whether the weights followed `left` as well, which was in the buffer before."""
    size = len(everyone)
    piled = ([add([right, left], [1, times])] * size for times in (1, size))
    wrong = ((states, MISTAKES.not_zeroed()) for states in piled)
    return instead(everyone, [right] * size, wrong, sums.alike)


def one_message(trial: Trial) -> Finding | None:
    messages = len(trial.calls[trial.rank])
    return MISTAKES.many_messages(got=messages) if messages > 1 else None


def besides_the_buffer(trial: Trial, flat: Tensor) -> Finding | None:
    """Whether more is sent, however, where the buffer has gone as it is to go."""
    calls = trial.calls[trial.rank]
    whole = any(call.api == "Allreduce" and call.bytes_sent == flat.nbytes for call in calls)
    return one_message(trial) if whole else None


def other_losses(
    parts: list[float], right: list[float], after: list[float], shares: list[float]
) -> Finding | None:
    """`right` are the ranks' parts, `after` those with the weights after the step."""

    def wrong() -> Iterator[tuple[list[float], Finding]]:
        means = [part / share if share else 0.0 for part, share in zip(right, shares, strict=True)]
        yield means, MISTAKES.loss_of_ranks()
        yield after, MISTAKES.loss_after()
        yield [sum(right)] * len(parts), MISTAKES.whole_loss()

    return instead(parts, right, wrong(), lambda a, b: same(a, b, TOLERANCE))
