"""the tied weight is in it twice

Both names of the shared weight get room.
"""

import torch
from torch import nn


def flat_gradients(model: nn.Module) -> torch.Tensor:
    named = model.named_parameters(remove_duplicate=False)
    trainable = [p for _, p in named if p.requires_grad]
    flat = trainable[0].new_zeros(sum(p.numel() for p in trainable))
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat
