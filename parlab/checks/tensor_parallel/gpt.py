"""The small GPT, serial and shared out, for the checks of both of its versions."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from parlab import models
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import layers, requirements
from parlab.checks.tensor_parallel.layers import (
    Passed,
    Right,
    Share,
    Shares,
    passes,
    random,
    seeded,
)
from parlab.checks.trial import Trial

LAYERS = 2

MISTAKES = Mistakes(
    untied=(
        "unembed.weight is another parameter than tokens.weight: the output layer is the "
        "embedding, and both are to learn as one"
    ),
    partial_gradient=(
        "{name} is whole on every rank, and its gradient is this rank's part: the ranks' parts add "
        "up to what is right. {where}"
    ),
    scores_gathered=(
        "the scores have all {got} tokens of the vocabulary on this rank: each keeps its own part, "
        "and the loss works with that"
    ),
)


def config_for(trial: Trial, grouped: bool) -> models.GPTConfig:
    """Sizes of which every rank can have a share."""
    n = trial.size
    heads = 2 * n
    return models.GPTConfig(
        vocab_size=n * trial.draw.randrange(3, 6),
        sequence_length=n * trial.draw.randrange(3, 5),
        hidden_size=heads * 2,
        layers=LAYERS,
        heads=heads,
        key_value_heads=n if grouped else None,
    )


def shares_of(model: models.GPT) -> Shares:
    """Who has which part, by the parameters' names."""
    sections = tuple(model.blocks[0].attention.sections)
    fused, columns = Share(0, sections), Share(0)
    parts: dict[str, Share | None] = {name: None for name, _ in model.named_parameters()}
    parts["tokens.weight"] = columns
    for i in range(len(model.blocks)):
        parts |= {
            f"blocks.{i}.attention.qkv.weight": fused,
            f"blocks.{i}.attention.qkv.bias": fused,
            f"blocks.{i}.attention.out.weight": Share(1),
            f"blocks.{i}.mlp.0.weight": columns,
            f"blocks.{i}.mlp.0.bias": columns,
            f"blocks.{i}.mlp.2.weight": Share(1),
        }
    return parts


class Case:
    """One GPT, its tokens and what the serial one makes of them."""

    def __init__(self, trial: Trial, *, grouped: bool, shorter: bool = False) -> None:
        self.config = config_for(trial, grouped)
        seed = trial.draw.getrandbits(32)
        self.serial: Callable[[], nn.Module] = lambda: seeded(seed, lambda: _busy(self.config))
        sequence = self.config.sequence_length - (trial.size if shorter else 0)
        drawn = [trial.draw.randrange(self.config.vocab_size) for _ in range(2 * sequence)]
        self.tokens = torch.tensor(drawn).view(2, sequence)
        self.weights = random(trial.draw, 2, sequence, self.config.vocab_size)
        model = self.serial()
        assert isinstance(model, models.GPT)
        self.shares = shares_of(model)
        self.right = layers.serially(model, self.tokens, lambda y: (y * self.weights).sum())
        self.hidden_bytes = 8 * 2 * sequence * self.config.hidden_size


def _busy(config: models.GPTConfig) -> models.GPT:
    """A GPT whose norms and biases are not the ones and zeros that they start as."""
    model = models.GPT(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    return model


def run(
    trial: Trial,
    case: Case,
    cut: Callable[[nn.Module], nn.Module],
    *,
    in_place: bool = False,
    finish: bool = False,
) -> Passed:
    """A forward and a backward pass; what is cut `in_place` is to be returned as well."""
    mine = Share(-1).of(case.weights, max(trial.rank, 0), trial.size)

    def passed() -> Passed | Finding:
        return passes(
            trial,
            case.serial,
            cut,
            case.tokens,
            layers.weighing(mine),
            finish=finish,
            in_place=in_place,
            leave=False,
        )

    return trial.run_function(passed, seconds=layers.SECONDS)


def scores_are(passed: Passed, right: Right, trial: Trial) -> Finding | None:
    own = Share(-1).of(right.output, trial.rank, trial.size)
    if passed.output.shape == right.output.shape != own.shape:
        return MISTAKES.scores_gathered(got=passed.output.shape[-1])
    return equal(passed.output, own, "the scores", TOLERANCE)


def gradients_are(
    passed: Passed,
    case: Case,
    everyone: Sequence[Passed],
    trial: Trial,
    where: str,
    known: Callable[[str, Tensor, Tensor], Finding | None] | None = None,
) -> Finding | None:
    """As of any layer; of a whole parameter with a part of its gradient, say `where`.

    `known` may name a mistake from a gradient's name, what it is and what is right.
    """
    wrong: list[Callable[[], Finding | None]] = []
    for name, whole in case.right.gradients.items():
        share = case.shares[name]
        own = layers.share_of(name, whole, case.shares, trial.rank, trial.size)
        got = passed.gradients[name]
        if got is None:
            return evidence(f"the gradient of {name} is None")
        if same(got, own, TOLERANCE):
            continue
        of_all = [one.gradients[name] for one in everyone]
        if share is None and requirements.are_parts(of_all, whole):
            return MISTAKES.partial_gradient(name=name, where=where)
        if known is not None and (found := known(name, got, own)) is not None:
            return found
        wrong.append(partial(requirements.gradient_is, got, own, of_all, name, whole=share is None))
    # What follows from a wrong gradient is wrong as well, and says less.
    found = [one() for one in wrong]
    return next((f for f in found if f and f.mistake), next(iter(found), None))
