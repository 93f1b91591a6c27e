"""Finding the layer to which a parameter belongs."""

import pytest
from torch import nn

from parlab import models
from parlab.sharding import own_parameters


def test_the_models_own_unit_has_the_parameters_outside_of_blocks() -> None:
    gpt = models.GPT()
    (model, rest), *blocks = own_parameters([gpt, *gpt.blocks])
    assert model is gpt and [layer for layer, _ in blocks] == list(gpt.blocks)
    outside = [gpt.tokens.weight, gpt.positions.weight, gpt.norm.weight, gpt.norm.bias]
    assert {id(p) for p in rest} == {id(p) for p in outside}  # the tied weight once
    every = [id(p) for _, own in [(model, rest), *blocks] for p in own]
    assert sorted(every) == sorted(id(p) for p in gpt.parameters())


def test_layers_without_trainable_parameters_are_left_out() -> None:
    mlp = models.mlp(8)
    mlp[3].requires_grad_(False)
    mlp[5].bias.requires_grad_(False)
    own = own_parameters(list(mlp))
    assert [(layer, len(parameters)) for layer, parameters in own] == [(mlp[1], 2), (mlp[5], 1)]


def test_a_shared_weight_needs_a_layer_around_both() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    with pytest.raises(ValueError, match="weight of Linear belongs to another layer too"):
        own_parameters([first, second])
    both = nn.Sequential(first, second)
    assert len(own_parameters([both])[0][1]) == 3
