"""Exercise `all_reduce_gradients`."""

import torch

from parlab.checks.base import models
from parlab.checks.base.call_outcome import idle_ranks_left
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_states, returns_nothing, same, wrong_names
from parlab.checks.base.messages import no_pickles, something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import State
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel import _models, _sums
from parlab.checks.data_parallel._models import Awkward, awkward_model, in_column_order

MISTAKES = Mistakes(
    **_sums.MISTAKES.texts,
    **_models.MISTAKES.texts,
    skipped=(
        "ranks without samples skipped the all-reduce, so the others wait forever. Every rank must "
        "make the same calls. If .grad is None, contribute zeros"
    ),
    tied_twice=(
        "{got} bytes are summed, expected {right}: the weight that embed and unembed share is sent "
        "twice. It is one parameter"
    ),
)


@check_of(MISTAKES)
def all_reduce_gradients(check: Check) -> str:
    """Check uneven shards, one of them empty, and a NaN, on 1, 2, … ranks."""
    for trial in check.trials():
        shards = reversed(models.uneven_shards(trial.draw, trial.size))
        for _, samples in trial.cases({f"samples on the ranks: {n}": n for n in shards}):
            _on_shards(trial, samples)
        for _, value in trial.cases({"a gradient that is NaN on rank 0": float("nan")}):
            model = awkward_model(trial.draw)
            for p in models.trainable(model).values():
                p.grad = p.detach() * (value if trial.rank == 0 else 1.0)
            trial.run(model, 1 / trial.size, trial.comm)
            grad = model.hidden.bias.grad
            finite = observed("the sum for hidden.bias is finite, expected NaN, as on rank 0")
            trial.require(lambda grad=grad: None if grad.isnan().all() else finite)
    return (
        "the full gradient on every rank, in place, for uneven and empty shards, each trainable "
        "tensor once"
    )


def _on_shards(trial: Trial, samples: list[int]) -> None:
    model = in_column_order(awkward_model(trial.draw))
    local = [models.gradients(model, *models.tokens(trial.draw, model, n)) for n in samples]
    share, own = samples[trial.rank] / sum(samples), local[trial.rank]
    for name, value in own.items() if share else ():
        if name != "unused":  # as backward() does, in the parameter's memory order
            parameter = model.get_parameter(name)
            parameter.grad = torch.empty_like(parameter).copy_(value)
    before, tensors, places = models.state_of(model), _models.Tensors(model), _places(model)
    got = trial.run(
        model,
        share,
        trial.comm,
        explain=lambda endings: idle_ranks_left(endings, samples, MISTAKES.skipped()),
    )
    everyone, weights = trial.gather(_models.gradients_of(model)), _sums.rank_weights(samples)
    right = models.add(local, weights[0][0].tolist())
    trial.require(
        lambda: returns_nothing(got, "changes to the gradients"),
        lambda: something_sent(trial),
        lambda: no_pickles(trial),
        lambda: each_once(model, trial),
        lambda: transposed_one(everyone[trial.rank], own, share, right),
        lambda: _sums.weighted_sum(everyone, local, weights, trial.rank),
        lambda: in_place(places, _places(model)),
        tensors.kept,
        lambda: equal_states(models.state_of(model), before, "{}", 0.0),
        lambda: _sums.only_all_reduces(trial),
    )


def each_once(model: Awkward, trial: Trial) -> Finding | None:
    parameters = models.trainable(model).values()
    right, got = sum(p.nbytes for p in parameters), trial.bytes_sent(trial.rank)
    if got == right + model.embed.weight.nbytes:
        return MISTAKES.tied_twice(got=got, right=right)
    calls = len(trial.calls[trial.rank])
    if trial.size == 1 or (got == right and calls <= len(parameters)):
        return None
    return observed(
        f"{calls} calls send {got} bytes in all, expected {len(parameters)} and {right}: each "
        "trainable tensor once, in its dtype, through one all-reduce, `unused` too"
    )


def transposed_one(got: State, own: State, share: float, right: State) -> Finding | None:
    """Name the mistake if only the transposed gradient is still this rank's own."""
    if wrong_names(got, right, models.TOLERANCE) != [name := "hidden.weight"]:
        return None
    is_own = same(got[name], share * own[name], models.TOLERANCE)
    return MISTAKES.copy_not_written_back(name=f"the gradient of {name}") if is_own else None


def _places(model: Awkward) -> dict[str, int]:
    return {n: p.grad.data_ptr() for n, p in model.named_parameters() if p.grad is not None}


def in_place(before: dict[str, int], now: dict[str, int]) -> Finding | None:
    """Require that each gradient stays in its memory, and that a frozen parameter has none."""
    if "frozen.weight" in now:
        return observed("frozen.weight has a .grad, expected None")
    moved = [name for name, place in before.items() if now.get(name) != place]
    return MISTAKES.not_in_place(name=f"the gradient of {moved[0]}") if moved else None
