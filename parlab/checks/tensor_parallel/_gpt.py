"""The small GPT, and each rank's share of it, for the checks of both parallel GPTs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from parlab import models
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import OUTPUT

LAYERS = 2
GROUPED = {"as many keys as heads": False, "grouped queries": True}

MISTAKES = Mistakes(
    untied=(
        "unembed.weight is another parameter than tokens.weight: the output layer is the "
        "embedding, so both must be one parameter"
    ),
)


def config(trial: Trial, grouped: bool = False) -> models.GPTConfig:
    """Return sizes that the trial's ranks can share evenly."""
    n = trial.size
    return models.GPTConfig(
        vocab_size=n * trial.draw.randrange(3, 6),
        sequence_length=n * trial.draw.randrange(3, 5),
        hidden_size=4 * n,
        layers=LAYERS,
        heads=2 * n,
        key_value_heads=n if grouped else None,
    )


def made(trial: Trial, sizes: models.GPTConfig) -> Callable[[], nn.Module]:
    """Return a function that makes a GPT whose norms and biases are not just ones and zeros."""

    def make() -> models.GPT:
        model = models.GPT(sizes)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
        return model

    return layers.seeded(trial, make)


def shares(sizes: models.GPTConfig) -> dict[str, layers.Share]:
    """Return the ranks' shares of the parameters and scores."""
    rows, columns = layers.Share(0), layers.Share(1)
    head_size, keys = sizes.hidden_size // sizes.heads, sizes.key_value_heads or sizes.heads
    fused = layers.Share(0, (sizes.hidden_size, keys * head_size, keys * head_size))
    parts = {name: layers.WHOLE for name, _ in models.GPT(sizes).named_parameters()}
    for i in range(sizes.layers):
        parts |= {f"blocks.{i}.attention.qkv.{name}": fused for name in ("weight", "bias")}
        parts |= {f"blocks.{i}.mlp.0.{name}": rows for name in ("weight", "bias")}
        parts |= {f"blocks.{i}.{name}.weight": columns for name in ("attention.out", "mlp.2")}
    return {**parts, "tokens.weight": rows, OUTPUT: layers.Share(-1)}


def case(trial: Trial, mistakes: Mistakes, grouped: bool, **more: Any) -> layers.Case:
    """Return the case of a GPT. With grouped queries, the input is shorter than it could be."""
    sizes = config(trial, grouped)
    sequence = sizes.sequence_length - grouped * trial.size
    drawn = [trial.draw.randrange(sizes.vocab_size) for _ in range(2 * sequence)]
    given = {
        "cut": lambda model: trial.check.function(model, trial.group),
        "shares": shares(sizes),
        "takes_apart": True,
        "form": is_tied,
    }
    tokens = torch.tensor(drawn).view(2, sequence)
    return layers.Case(mistakes, made(trial, sizes), x=tokens, **given | more)


def is_tied(model: nn.Module) -> Finding | None:
    return None if model.unembed.weight is model.tokens.weight else MISTAKES.untied()


def keeps_names(model: nn.Module) -> Finding | None:
    if "tokens.weight" in dict(model.named_parameters()):
        return None
    return observed(
        "`named_parameters()` calls the tied weight `unembed.weight`, expected `tokens.weight`: "
        "parameters keep their names, so replace each module at its place"
    )
