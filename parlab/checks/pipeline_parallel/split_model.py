"""Exercise `split_model`."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from parlab import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.unchanged import unchanged
from parlab.pipeline.stages import layers_of

MISTAKES = Mistakes(
    copied=(
        "the stages contain copies of the layers. Use the layers themselves, because later "
        "changes of a layer do not all reach its copy"
    ),
)


@check_of(MISTAKES, ranks=1)
def split_model(check: Check) -> str:
    """Check order, sizes, and identity of the layers, also for a GPT, and refusals."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        drawn = [(stages + pick(0, 20), stages) for stages in (pick(2, 9), pick(2, 9))]
        sizes = [(6, 3), (9, 4), (11, 4), (7, 6), (5, 5), (3, 1), (1, 1), *drawn]
        cases = {
            f"{n} layers, {stages} stages": (partial(linear_layers, n), stages)
            for n, stages in [*sizes, (3, 4), (1, 2), (4, 0), (2, -1)]
        }
        with torch.random.fork_rng(devices=[]):
            gpt = models.GPT(models.GPTConfig(hidden_size=8, heads=2, layers=3))
        rows = [nn.Sequential(nn.Linear(1, 1), nn.Tanh()) for _ in range(3)]
        cases["3 layers, each an nn.Sequential, 2 stages"] = lambda: rows, 2
        cases["the layers of a GPT, 2 stages"] = lambda: layers_of(gpt), 2
        for _, (make, stages) in trial.cases(cases):
            layers = make()
            given = list(layers)
            if not 1 <= stages <= len(layers):
                require_refusal(
                    trial,
                    lambda: trial.check.function(given, stages),
                    what=f"{len(given)} layers for {stages} stages",
                )
                continue
            got = trial.run(given, stages)
            trial.require(
                lambda: has_type(got, list | tuple, "a list of modules"),
                lambda: unchanged("`layers`", list(map(id, given)), list(map(id, layers))),
                lambda: stages_are(got, layers, stages),
            )
    return "all layers, in order, in stages of even size; a stage without a layer is refused"


def linear_layers(n: int) -> list[nn.Module]:
    return [nn.Linear(1, 1) for _ in range(n)]


def stages_are(got: Any, layers: list[nn.Module], stages: int) -> Finding | None:
    for stage in got:
        if (found := has_type(stage, nn.Sequential, "an nn.Sequential", "a stage")) is not None:
            return found
    numbers = {id(layer): index for index, layer in enumerate(layers)}
    places = [[numbers.get(id(layer)) for layer in stage] for stage in got]
    right = [p.tolist() for p in np.array_split(np.arange(len(layers)), stages)]
    if places == right:
        return None
    unknown = [index for place in places for index in place if index is None]
    if len(unknown) == len(layers) == sum(map(len, places)):
        return MISTAKES.copied()
    if unknown:
        return observed(
            f"{len(unknown)} modules in the stages are none of `layers`. Use the layers "
            "themselves, and do not take them apart"
        )
    return observed(
        f"the stages have the layers {places}, expected {right}: each stage has layers that follow "
        "each other, and the first stages have the additional ones"
    )
