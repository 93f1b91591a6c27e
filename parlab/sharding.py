"""Assigns parameters to layers, and makes flat buffers of them, for labs that shard a model.

for layer, parameters in own_parameters([model, *model.blocks]):
    ...
flat, gradient = flat_buffers(list(model.parameters()), world_size)
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def own_parameters(layers: Sequence[nn.Module]) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Return each layer with its trainable parameters. Leave out layers without any.

    `layers` must list outer layers first. The parameters of a layer inside another, such as a block
    of a model, belong only to the inner one. Frozen parameters belong to no layer.

    Raises:
        ValueError: two layers share a parameter, and neither contains the other. While one is
            freed, the other would have no weight. Pass a layer that contains both.
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
                    f"{name} of {type(layer).__name__} is also used by another layer. Only one "
                    "layer gathers a tied weight: pass a layer that contains all that use it"
                )
        if kept:
            own.insert(0, (layer, kept))
    return own


def flat_buffers(parameters: Sequence[nn.Parameter], multiple: int) -> tuple[Tensor, Tensor]:
    """Move parameters into one flat buffer, and their gradients into a second one.

    Each parameter becomes a view of the first buffer, and its `.grad` a view of the second. Both
    buffers are padded with zeros to the next multiple of `multiple`. A backward pass adds to the
    gradients in place.

    Args:
        parameters: trainable parameters, each once, all with the same dtype and device.
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
