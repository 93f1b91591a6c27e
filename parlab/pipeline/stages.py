"""A rank's share of a model in a pipeline: its stages, and the sizes of their inputs."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parlab import models
from parlab.pipeline.actions import Action


@dataclass
class Share:
    """This rank's stages of a model with `count` = p·v stages. Stage s is on rank s % p.

    Attributes:
        count: the number of stages of the whole model.
        own: this rank's stages, by number.
        inputs: for each stage, one sample of its input, of which only shape and dtype matter.
        device: this rank's device.
    """

    count: int
    own: dict[int, nn.Module]
    inputs: list[Tensor]
    device: torch.device

    def room(self, action: Action, samples: int) -> Tensor:
        """Return an empty tensor for the data of other stages that `action` needs for `samples`.

        A forward pass needs the stage's input. A backward pass needs the gradient of its output,
        which has the shape and dtype of the next stage's input.
        """
        one = self.inputs[action.stage + (action.kind == "backward")]
        return torch.empty(samples, *one.shape[1:], dtype=one.dtype, device=self.device)

    def number(self, action: Action) -> int:
        """Return a unique number for this action of the model's stages: 0, 1, 2, …"""
        place = action.micro_batch * self.count + action.stage
        return 2 * place + (action.kind == "backward")

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of this rank's stages, in order. A shared one occurs only once."""
        return list(nn.ModuleList(self.own[stage] for stage in sorted(self.own)).parameters())


def share_of(
    stages: Sequence[nn.Module],
    sample: Tensor,
    rank: int,
    ranks: int,
    device: torch.device | str = "cpu",
) -> Share:
    """Return the share of a model's `stages` for `rank`. `sample` (1, …) is any input.

    This runs copies of the stages in evaluation mode to find the sizes between them, so that
    counters in the stages and random generators do not change.

    Raises ValueError if the stages cannot be divided equally among the ranks.
    """
    if len(stages) % ranks:
        raise ValueError(f"{ranks} ranks do not divide {len(stages)} stages")
    inputs = [sample]
    with torch.no_grad():
        for stage in stages[:-1]:
            inputs.append(copy.deepcopy(stage).eval()(inputs[-1]))
    own = {stage: stages[stage] for stage in range(rank, len(stages), ranks)}
    return Share(len(stages), own, inputs, torch.device(device))


class Embedding(nn.Module):
    """The first layer of a GPT: tokens (batch, seq) int64 → (batch, seq, hidden)."""

    def __init__(self, tokens: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.positions = tokens, positions

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.tokens(tokens_BS) + self.positions.weight[: tokens_BS.shape[1]]


class Output(nn.Module):
    """The last layer of a GPT: (batch, seq, hidden) → scores (batch, seq, vocab)."""

    def __init__(self, norm: nn.LayerNorm, unembed: nn.Linear) -> None:
        super().__init__()
        self.norm, self.unembed = norm, unembed

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.unembed(self.norm(x_BSH))


def layers_of(model: models.GPT) -> list[nn.Module]:
    """Return the GPT's own layers in order: embedding, blocks, output.

    The embedding's `tokens.weight` and the output's `unembed.weight` are the same parameter.
    """
    return [
        Embedding(model.tokens, model.positions),
        *model.blocks,
        Output(model.norm, model.unembed),
    ]


def tied_weight(share: Share) -> nn.Parameter | None:
    """Return this rank's copy of the weight that a GPT's first and last stages share, or None."""
    for stage, kind, layer in ((0, Embedding, "tokens"), (share.count - 1, Output, "unembed")):
        for module in share.own[stage].modules() if stage in share.own else ():
            if isinstance(module, kind):
                return getattr(module, layer).weight
    return None
