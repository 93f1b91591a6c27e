"""it is a copy, not a view

cat copies what it joins.
"""

import torch
from torch import nn


def flat_gradients(model: nn.Module) -> torch.Tensor:
    trainable = [p for p in model.parameters() if p.requires_grad]

    for parameter in trainable:
        parameter.grad = torch.zeros_like(parameter)
    return torch.cat([parameter.grad.flatten() for parameter in trainable])
