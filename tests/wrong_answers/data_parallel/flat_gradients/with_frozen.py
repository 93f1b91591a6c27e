"""the frozen weight, which never gets a gradient, is in it

All parameters, trained or not, get room.
"""

import torch
from torch import nn


def flat_gradients(model: nn.Module) -> torch.Tensor:
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    flat = parameters[0].new_zeros(sum(sizes))
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        if parameter.requires_grad:
            parameter.grad = part.view_as(parameter)
    return flat
