"""overlap at place

The offset never moves.
"""

import torch
from torch import nn


def flat_gradients(model: nn.Module) -> torch.Tensor:
    trainable = [p for p in model.parameters() if p.requires_grad]

    flat = trainable[0].new_zeros(sum(p.numel() for p in trainable))
    for parameter in trainable:
        parameter.grad = flat[: parameter.numel()].view_as(parameter)
    return flat
