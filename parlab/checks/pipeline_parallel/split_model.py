"""Exercise `split_model`."""

from typing import Any

import torch
from torch import nn

from parlab import models
from parlab.checks.check import Check, check_of
from parlab.checks.compare import is_a
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.pipeline.stages import layers_of

MISTAKES = Mistakes(
    copied=(
        "layer {index} is a copy: what an optimizer was given, or a tied weight, would be another "
        "one. Take the layers themselves"
    ),
    taken_apart=(
        "layer {index}, an nn.Sequential itself, is taken apart: it is one layer of the model, and "
        "counts as one"
    ),
    layers_missing="{count} layers are in no stage: the last is layer {index}",
    strided=(
        "stage 0 has layers {got}: that deals the layers out one by one. A stage has layers that "
        "follow each other, or every layer would need a message"
    ),
    uneven="the stages have {got} layers: the numbers differ by one at most",
    longer_last=(
        "the stages have {got} layers: where they cannot be even, the first stages have one more. "
        "The last one has the output and the loss"
    ),
    not_refused=(
        "it accepts {stages} stages of {layers} layers: a stage without a layer is to be refused, "
        "with a ValueError that says so"
    ),
)


@check_of(MISTAKES)
def split_model(check: Check) -> str:
    """Check order, sizes and identity of the layers; of a GPT, too; refusals."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        drawn = [(stages + pick(0, 20), stages) for stages in (pick(2, 9), pick(2, 9))]
        for count, stages in [(6, 3), (9, 4), (11, 4), (7, 6), (5, 5), (3, 1), (1, 1), *drawn]:
            trial.situation = f"{count} layers, {stages} stages"
            _one(trial, [nn.Linear(1, 1) for _ in range(count)], stages)
        trial.situation = "3 layers that are nn.Sequential, 2 stages"
        _one(trial, [nn.Sequential(nn.Linear(1, 1), nn.Tanh()) for _ in range(3)], 2)
        trial.situation = "the layers of a GPT, 2 stages"
        with torch.random.fork_rng(devices=[]):
            gpt = models.GPT(models.GPTConfig(hidden_size=8, heads=2, layers=3))
        _one(trial, layers_of(gpt), 2)
        for count, stages in [(3, 4), (1, 2), (4, 0), (2, -1)]:
            trial.situation = f"{count} layers, {stages} stages"
            _refusal(trial, count, stages)
    return "all layers, in order, in stages of even size; a stage without a layer is refused"


def _one(trial: Trial, layers: list[nn.Module], stages: int) -> None:
    given = list(layers)
    got = trial.run(given, stages)
    trial.require(
        lambda: is_a(got, list | tuple, "a list of modules"),
        lambda: None if _same(given, layers) else COMMON.argument_changed(name="`layers`"),
        lambda: stages_are(got, layers, stages),
    )


def _same(one: list[nn.Module], other: list[nn.Module]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def stages_are(got: Any, layers: list[nn.Module], stages: int) -> Finding | None:
    if len(got) != stages:
        return evidence(f"it returns {len(got)} stages where {stages} are right")
    for stage in got:
        if (found := is_a(stage, nn.Sequential, "an nn.Sequential", "a stage")) is not None:
            return found
    numbers = {id(layer): index for index, layer in enumerate(layers)}
    places = [[numbers.get(id(layer)) for layer in stage] for stage in got]
    flat = [index for stage in places for index in stage]
    inside = {id(part) for stage in got for part in stage}
    for index, layer in enumerate(layers):
        parts = [id(part) for part in layer] if isinstance(layer, nn.Sequential) else []
        if index not in flat and inside.issuperset(parts) and parts:
            return MISTAKES.taken_apart(index=index)
    if None in flat:
        return MISTAKES.copied(index=flat.index(None))
    if sorted(flat) == list(range(len(layers))) != flat:
        if len(places[0]) > 1 and places[0][1] - places[0][0] == stages:
            return MISTAKES.strided(got=places[0])
        return evidence(f"the layers are in another order: {places}")
    if missing := set(range(len(layers))) - set(flat):
        return MISTAKES.layers_missing(count=len(missing), index=max(missing))
    if len(flat) != len(layers):
        return evidence(f"a layer is in two stages: {places}")
    counts = [len(stage) for stage in places]
    if max(counts) - min(counts) > 1:
        return MISTAKES.uneven(got=counts)
    if counts != sorted(counts, reverse=True):
        return MISTAKES.longer_last(got=counts)
    return None


def _refusal(trial: Trial, count: int, stages: int) -> None:
    def attempt() -> Exception | None:
        try:
            trial.check.function([nn.Linear(1, 1) for _ in range(count)], stages)
        except NotImplementedError:
            raise  # a stub
        except Exception as error:
            return error
        return None

    raised = trial.run_function(attempt)

    def refused() -> Finding | None:
        if raised is None:
            return MISTAKES.not_refused(stages=stages, layers=count)
        if not isinstance(raised, ValueError):
            return evidence(
                f"it raises {type(raised).__name__}: {raised}. A ValueError is asked for"
            )
        return None if str(raised) else evidence("the ValueError says nothing")

    trial.require(refused)
