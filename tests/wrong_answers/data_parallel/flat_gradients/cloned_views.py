"""it is a copy, not a view

A clone of a view is a tensor of its own.
"""

import torch
from torch import nn


def flat_gradients(model: nn.Module) -> torch.Tensor:
    trainable = [p for p in model.parameters() if p.requires_grad]

    flat = trainable[0].new_zeros(sum(p.numel() for p in trainable))
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad = part.view_as(parameter).clone()
    return flat
