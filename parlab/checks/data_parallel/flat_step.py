"""Exercise `flat_step`."""

from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parlab.checks.base import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, has_type, same_states
from parlab.checks.base.messages import no_pickles, something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE, State
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel import _sums
from parlab.checks.data_parallel._models import A_FLOAT, Awkward, awkward_model, gradients_of

RATE = 0.5

MISTAKES = Mistakes(
    **_sums.MISTAKES.texts,
    left_the_buffer=(
        "the gradient of {name} is no longer in the buffer. optimizer.zero_grad() sets gradients "
        "to None, and backward() then creates new tensors. Zero the buffer in place"
    ),
    not_zeroed=(
        "the step includes what was in the buffer before the call. backward() adds to what is "
        "there, so zero the buffer first"
    ),
    step_before_sum=(
        "the buffer holds the sum, but the weights have changed by something else. Call "
        "optimizer.step() after the all-reduce"
    ),
    many_messages="{got} messages, expected 1: send the whole buffer in one all-reduce",
    loss_of_ranks=(
        "each rank returns the mean loss over its own samples. Multiply by len(inputs) / total"
    ),
    whole_loss="each rank returns the mean loss over the global batch. Return only its own part",
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
    losses = [models.loss_sum(model, *shard) / total for shard in shards]
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
    )
    parts = trial.gather(part)
    trial.require(lambda: right_losses(parts, losses, samples))


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
    first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for name, parameter in models.trainable(model).items():
        if parameter.grad is None or not first <= parameter.grad.data_ptr() < last:
            return MISTAKES.left_the_buffer(name=name)
    return None


def one_step(steps: int, taken: State, right: State) -> Finding | None:
    if steps == 1 or (not steps and same_states(taken, right, TOLERANCE)):
        return None
    return observed(f"optimizer.step() is called {steps} times, expected 1")


def other_step(taken: State, right: State, now: State, earlier: State, size: int) -> Finding | None:
    """Name the mistake if the step is not along `right`, but what is in the buffer explains it."""
    if same_states(taken, right, TOLERANCE):
        return None
    if same_states(now, right, TOLERANCE):
        return MISTAKES.step_before_sum()
    not_zeroed = (models.add([right, earlier], [1, times]) for times in (1, size))
    if any(same_states(taken, state, TOLERANCE) for state in not_zeroed):
        return MISTAKES.not_zeroed()
    return None


def right_losses(parts: list[float], losses: list[float], samples: list[int]) -> Finding | None:
    """Require return values that add up to the mean loss; `losses` are the ranks' parts of it."""
    finding = _sums.loss_parts(parts, sum(losses))
    if finding is None:
        return None
    means = [loss * sum(samples) / max(n, 1) for loss, n in zip(losses, samples, strict=True)]
    variants = {"loss_of_ranks": np.array(means), "whole_loss": np.full(len(parts), sum(losses))}
    named = explained(np.array(parts), np.array(losses), variants, MISTAKES, tolerance=TOLERANCE)
    return named if named and named.mistake in variants else finding
