"""Exercise `all_reduce_gradients`."""

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.compare import same, wrong_names
from parlab.checks.data_parallel import sums
from parlab.checks.data_parallel.broadcast_state import returns_nothing
from parlab.checks.data_parallel.models import (
    LAYOUT,
    Awkward,
    Tensors,
    awkward_model,
    gradients_of,
    in_column_order,
)
from parlab.checks.data_parallel.sums import WeightedSum
from parlab.checks.endings import idle_ranks_left
from parlab.checks.messages import no_pickles, something_sent
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import (
    TOLERANCE,
    State,
    gradients,
    state_of,
    tokens,
    trainable,
    uneven_shards,
)
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    hides_nan=(
        "a gradient that is NaN on one rank is none in the sum: the mean loss over the global "
        "batch is NaN as well, and whoever watches it has to see that"
    ),
    **sums.MISTAKES.texts,
    **LAYOUT.texts,
    skipped=(
        "ranks whose share is empty did not take part in the all-reduces in which the others wait. "
        "They have no .grad, which counts as zeros: all ranks must make the same calls"
    ),
    new_gradient=(
        "the gradient of {name} is another tensor than before: in place means that whoever holds "
        "the old one, or a buffer that it is a view of, sees the sum"
    ),
    no_gradient="{name} has no .grad afterwards: a sum in which this rank's part is 0 is no None",
    frozen_gradient="frozen.weight has a .grad now: it requires none, and needs no message",
    model_changed="{name} has changed: only gradients are to be summed",
    unused_left_out=(
        "{got} bytes are summed where {right} are right: `unused`, which no gradient reached on "
        "any rank here, is left out. It is one more trainable tensor, and a rank cannot know what "
        "the others have"
    ),
    tied_twice=(
        "embed.weight serves two layers and is one parameter: as a tied weight it is weighted or "
        "reduced twice"
    ),
)


@check_of(MISTAKES)
def all_reduce_gradients(check: Check) -> str:
    """Check on uneven shards, one of them empty, on 1, 2, … ranks."""
    for trial in check.trials():
        for samples in reversed(uneven_shards(trial.draw, trial.size)):
            _on_shards(trial, samples)
        _of_a_loss_that_is_nan(trial)
    return (
        "the full gradient on every rank, in place, for uneven and empty shards, each trainable "
        "tensor once"
    )


def _on_shards(trial: Trial, samples: list[int]) -> None:
    trial.situation = f"samples on the ranks: {samples}"
    model = in_column_order(awkward_model(trial.draw))
    local = [gradients(model, *tokens(trial.draw, model, n)) for n in samples]
    total, mine = WeightedSum(local, samples), local[trial.rank]
    share = total.shares[trial.rank]
    _set_gradients(model, mine if share else {})
    before, tensors, places = state_of(model), Tensors(model), _places(model)
    got = trial.run(
        model,
        share,
        trial.comm,
        explain=lambda endings: idle_ranks_left(endings, samples, MISTAKES.skipped()),
    )
    everyone = trial.gather(gradients_of(model))
    now = everyone[trial.rank]
    trial.require(
        lambda: returns_nothing(got),
        lambda: something_sent(trial),
        lambda: no_pickles(trial),
        lambda: present(model),
        lambda: total.instead(everyone),
        lambda: one_wrong(now, mine, share, total.right),
        lambda: total.equals(now),
        lambda: frozen(model),
        lambda: in_place(places, _places(model)),
        tensors.kept,
        lambda: unchanged(before, state_of(model)),
        lambda: each_once(model, trial),
    )


def _of_a_loss_that_is_nan(trial: Trial) -> None:
    trial.situation = f"with {trial.size} ranks, and a loss that is NaN on rank 0"
    model = in_column_order(awkward_model(trial.draw))
    nan = float("nan") if trial.rank == 0 else 1.0
    _set_gradients(model, {name: p.detach() * nan for name, p in trainable(model).items()})
    trial.run(model, 1 / trial.size, trial.comm)
    gradient = model.hidden.bias.grad
    trial.require(lambda: None if gradient.isnan().all() else MISTAKES.hides_nan())


def _set_gradients(model: Awkward, values: State) -> None:
    """What backward() leaves: no gradient for the unused parameter, nor for frozen ones."""
    for name, value in values.items():
        if name != "unused":  # in the order of the parameter's memory
            parameter = model.get_parameter(name)
            parameter.grad = torch.empty_like(parameter).copy_(value)


def _places(model: Awkward) -> dict[str, int]:
    return {n: p.grad.data_ptr() for n, p in trainable(model).items() if p.grad is not None}


def present(model: Awkward) -> Finding | None:
    missing = [n for n, p in trainable(model).items() if p.grad is None and n != "unused"]
    return MISTAKES.no_gradient(name=missing[0]) if missing else None


def one_wrong(got: State, local: State, share: float, right: State) -> Finding | None:
    """The tied weight, or the one that lies in another order, where all others are right."""
    wrong = wrong_names(got, right, TOLERANCE)
    if wrong == ["embed.weight"]:
        return MISTAKES.tied_twice()
    if wrong == [name := "hidden.weight"]:
        own = any(same(got[name], times * local[name], TOLERANCE) for times in (1.0, share))
        return LAYOUT.copy_not_written_back(name=f"the gradient of {name}") if own else None
    return None


def frozen(model: Awkward) -> Finding | None:
    return None if model.frozen.weight.grad is None else MISTAKES.frozen_gradient()


def in_place(before: dict[str, int], now: dict[str, int]) -> Finding | None:
    moved = [name for name, place in before.items() if now.get(name) != place]
    return MISTAKES.new_gradient(name=moved[0]) if moved else None


def unchanged(before: State, now: State) -> Finding | None:
    changed = wrong_names(now, before)
    return MISTAKES.model_changed(name=changed[0]) if changed else None


def each_once(model: Awkward, trial: Trial) -> Finding | None:
    if trial.size == 1:
        return None
    parameters = trainable(model).values()
    once, sent = sum(p.nbytes for p in parameters), trial.bytes_sent(trial.rank)
    messages = len(trial.calls[trial.rank])
    if sent == once + model.embed.weight.nbytes:
        return MISTAKES.tied_twice()
    if sent == once - model.unused.nbytes:
        return MISTAKES.unused_left_out(got=sent, right=once)
    if sent != once or messages > len(parameters):
        return evidence(
            f"{messages} messages of {sent} bytes in all, where {len(parameters)} of {once} "
            "are right: each trainable tensor goes once through one all-reduce"
        )
    return None
