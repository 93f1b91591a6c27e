"""Which parameters are gathered and freed together: the plumbing of ZeRO's labs.

for layer, parameters in own_parameters([model, *model.blocks]):
    ...
"""

from collections.abc import Sequence

from torch import nn


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
