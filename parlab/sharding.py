"""The plumbing of labs that shard a model: whose parameters, and flat buffers of them.

for layer, parameters in own_parameters([model, *model.blocks]):
    ...
flat, gradient = flat_buffers(list(model.parameters()), world_size)
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def own_parameters(layers: Sequence[nn.Module]) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Each layer with its trainable parameters, outer layers first; those without are left out.

    A layer that lies inside another (a block of a model) keeps its parameters to itself: the outer
    one has the rest. Frozen parameters are nobody's.

    Raises:
        ValueError: two layers, neither of which lies in the other, share a parameter. While one is
            freed the other would have no weight: name a layer around both.
    """
    owner: dict[nn.Parameter, nn.Module] = {}
    own: list[tuple[nn.Module, list[nn.Parameter]]] = []
    for layer in reversed(layers):
        kept = []
        for name, parameter in layer.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter not in owner:
                owner[parameter] = layer
                kept.append(parameter)
            elif owner[parameter] not in set(layer.modules()):
                raise ValueError(
                    f"{name} of {type(layer).__name__} belongs to another layer too: a tied weight "
                    "is gathered for one layer, which must lie around all that use it"
                )
        if kept:
            own.insert(0, (layer, kept))
    return own


def flat_buffers(parameters: Sequence[nn.Parameter], multiple: int) -> tuple[Tensor, Tensor]:
    """Move parameters into one flat buffer, and their gradients into a second one.

    Each parameter becomes a view of the first buffer, and its `.grad` a view of the second. Both
    buffers end with zeros, as few as make their length a multiple of `multiple`. A backward pass
    adds to the gradients in place.

    Args:
        parameters: all trainable, each once, with one dtype and device.
    """
    sizes = [p.numel() for p in parameters]
    length = -(-sum(sizes) // multiple) * multiple
    flat = parameters[0].detach().new_zeros(length)
    gradient = torch.zeros_like(flat)
    used = slice(0, sum(sizes))
    parts = zip(flat[used].split(sizes), gradient[used].split(sizes), strict=True)
    for parameter, (part, own_gradient) in zip(parameters, parts, strict=True):
        part.copy_(parameter.detach().flatten())
        parameter.data = part.view_as(parameter)
        parameter.grad = own_gradient.view_as(parameter)
    return flat, gradient
