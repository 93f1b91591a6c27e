"""Exercise `flat_step`."""

from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parlab.checks.base import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type, same_states
from parlab.checks.base.messages import no_pickles, something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE, State
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel import _sums
from parlab.checks.data_parallel._models import (
    A_FLOAT,
    Awkward,
    awkward_model,
    gradients_of,
    inside,
)

RATE = 0.5

MISTAKES = Mistakes(
    **_sums.MISTAKES.texts,
    left_the_buffer=(
        "the gradient of {name} is no longer in the buffer. Sum and zero the buffer in place, and "
        "replace no `.grad`, as optimizer.zero_grad() does, which sets it to None"
    ),
    not_zeroed=(
        "the step includes what was in the buffer before the call. backward() adds to what is "
        "there, so zero the buffer first"
    ),
    step_before_sum=(
        "the buffer holds the sum, but the weights have changed by something else. Call "
        "optimizer.step() after the all-reduce"
    ),
    many_messages="{got} messages, expected 1: an all-reduce of the whole buffer, and nothing else",
)


@check_of(MISTAKES)
def flat_step(check: Check) -> str:
    """Check two steps of SGD, on uneven and empty shards, on 1, 2, … ranks."""
    for trial in check.trials():
        shards = models.uneven_shards(trial.draw, trial.size)
        for _, samples in trial.cases({f"samples on the ranks: {n}": n for n in shards}):
            model = awkward_model(trial.draw)
            flat = _flat(model)
            flat.fill_(trial.draw.uniform(1, 2))  # as if from an earlier step
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in trial.cases({"step 1": 1, "step 2": 2}):
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
    shards, total = [models.tokens(trial.draw, model, n) for n in samples], sum(samples)
    local = [models.gradients(model, *shard) for shard in shards]
    loss = sum(models.loss_sum(model, *shard) for shard in shards) / total
    before, earlier = models.state_of(model), gradients_of(model)
    steps: list[int] = []
    hook = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    part = trial.run(model, flat, optimizer, *shards[trial.rank], total, trial.comm)
    hook.remove()
    after, weights = models.state_of(model), _sums.rank_weights(samples)
    taken = {name: (before[name] - after[name]) / RATE for name in models.trainable(model)}
    right = models.add(local, weights[0][0].tolist())
    everyone, name = trial.gather(taken), "(before - after) / lr of {}"
    trial.require(
        lambda: has_type(part, Real, A_FLOAT),
        lambda: something_sent(trial),
        lambda: one_message(trial),
        lambda: no_pickles(trial),
        lambda: in_the_buffer(flat, model),
        lambda: one_step(len(steps), taken, right),
        lambda: other_step(taken, right, gradients_of(model), earlier, trial.size),
        lambda: _sums.weighted_sum(everyone, local, weights, trial.rank, name),
        lambda: _sums.only_all_reduces(trial),
    )
    parts = trial.gather(part)
    trial.require(lambda: _sums.loss_parts(parts, loss))


def _flat(model: Awkward) -> Tensor:
    """Return the buffer that exercise `flat_gradients` asks for."""
    parameters = list(models.trainable(model).values())
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    flat = torch.zeros_like(parameters_to_vector(parameters)).detach()
    vector_to_parameters(flat, (p.grad for p in parameters))
    return flat


def one_message(trial: Trial) -> Finding | None:
    messages = len(trial.calls[trial.rank])
    return MISTAKES.many_messages(got=messages) if messages > 1 else None


def in_the_buffer(flat: Tensor, model: nn.Module) -> Finding | None:
    for name, parameter in models.trainable(model).items():
        if not inside(parameter.grad, flat):
            return MISTAKES.left_the_buffer(name=name)
    return None


def one_step(steps: int, taken: State, right: State) -> Finding | None:
    if steps == 1 or (not steps and same_states(taken, right, TOLERANCE)):
        return None
    return observed(f"optimizer.step() is called {steps} times, expected 1")


def other_step(taken: State, right: State, now: State, earlier: State, size: int) -> Finding | None:
    """Name the mistake if the step is not `right` and the contents of the buffer explain why."""
    if same_states(taken, right, TOLERANCE):
        return None
    if same_states(now, right, TOLERANCE):
        return MISTAKES.step_before_sum()
    not_zeroed = (models.add([right, earlier], [1, times]) for times in (1, size))
    if any(same_states(taken, state, TOLERANCE) for state in not_zeroed):
        return MISTAKES.not_zeroed()
    return None
