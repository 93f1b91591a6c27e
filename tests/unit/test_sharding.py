"""Finding the layer to which a parameter belongs."""

import pytest
import torch
from torch import nn

from parlab import models
from parlab.sharding import flat_buffers, own_parameters


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
    with pytest.raises(ValueError, match="weight of Linear is also used by another layer"):
        own_parameters([first, second])
    both = nn.Sequential(first, second)
    assert len(own_parameters([both])[0][1]) == 3


def test_flat_buffers_are_the_memory_of_parameters_and_gradients() -> None:
    layer = nn.Linear(3, 2)
    before = [p.detach().clone() for p in layer.parameters()]
    flat, gradient = flat_buffers(list(layer.parameters()), 5)
    assert len(flat) == len(gradient) == 10 and flat[8:].tolist() == [0, 0]
    assert all(torch.equal(p, old) for p, old in zip(layer.parameters(), before, strict=True))
    layer(torch.ones(3)).sum().backward()
    assert gradient.tolist() == [1.0] * 8 + [0.0] * 2
    flat += 1
    assert torch.equal(layer.bias, before[1] + 1)
    assert not flat.requires_grad


def test_flat_buffers_need_no_padding_for_a_multiple() -> None:
    flat, _ = flat_buffers([nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))], 5)
    assert flat.tolist() == [1.0] * 10
