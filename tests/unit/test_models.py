"""The labs' models: formulas for their sizes, their shapes, and the awkward model's properties."""

import pytest
import torch
import torch.nn.functional as F

from parlab import models


@pytest.mark.parametrize("hidden_size", [16, 256])
def test_mlp_has_the_documented_parameters(hidden_size: int) -> None:
    h = hidden_size
    model = models.mlp(h)
    assert models.parameter_count(model) == 784 * h + h * h + h * 10 + 2 * h + 10
    assert model(torch.zeros(3, 28, 28)).shape == (3, 10)


def test_gpt_has_the_parameters_of_the_megatron_formula() -> None:
    """P = 12lh²(1 + 13/(12h)) + (V + s)h, and 2h for the last norm (arXiv:2104.04473)."""
    config = models.GPTConfig()
    layers, h = config.layers, config.hidden_size
    expected = layers * (12 * h * h + 13 * h) + (config.vocab_size + config.sequence_length) * h
    assert models.parameter_count(models.GPT(config)) == expected + 2 * h


def test_gpt_ties_its_embedding_and_sees_only_the_past() -> None:
    torch.manual_seed(0)
    model = models.GPT()
    assert model.unembed.weight is model.tokens.weight
    tokens = torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40:] = 0
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 64, 256)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_gpt_starts_near_the_loss_of_a_guess_and_learns() -> None:
    torch.manual_seed(0)
    model = models.GPT(models.GPTConfig(hidden_size=32, layers=1, heads=2))
    tokens = torch.arange(65).repeat(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(256.0).log().item(), rel=0.05)
    assert losses[-1] < losses[0] / 2


def test_gpt_refuses_invalid_inputs() -> None:
    with pytest.raises(ValueError, match="raise sequence_length"):
        models.GPT()(torch.zeros(1, 65, dtype=torch.int64))
    with pytest.raises(ValueError, match="heads = 3"):
        models.GPT(models.GPTConfig(hidden_size=64, heads=3))


def test_awkward_is_awkward() -> None:
    model = models.Awkward()
    F.cross_entropy(model(torch.randint(11, (5,))), torch.randint(11, (5,))).backward()
    assert model.embed.weight is model.unembed.weight
    has_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert has_gradient == {"embed.weight", "hidden.weight", "hidden.bias", "unembed.bias"}
    assert model.unused.requires_grad and not model.frozen.weight.requires_grad
    assert {name: b.dtype for name, b in model.named_buffers()} == {
        "scale": torch.float32,
        "seen": torch.int64,
        "shift": torch.float32,
    }
    assert "shift" not in model.state_dict()
