"""the buffer is torch.float32 where the parameters are torch.float64

The default dtype, whatever the model has.
"""

import torch
from torch import nn


def flat_gradients(model: nn.Module) -> torch.Tensor:
    trainable = [p for p in model.parameters() if p.requires_grad]

    flat = torch.zeros(sum(p.numel() for p in trainable))
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)
    return flat
