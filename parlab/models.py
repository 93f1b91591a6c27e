"""The small models of the labs: an MLP for MNIST, a byte-level GPT, and models built to be awkward.

They run in milliseconds on one core and have everything that the real ones have: tied weights,
layer norm, attention. No dropout, so that a run on N ranks can be compared with one on a single
rank, number by number.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(hidden_size: int = 256, *, inputs: int = 784, classes: int = 10) -> nn.Sequential:
    """Images (batch, 28, 28) or vectors (batch, inputs) → scores (batch, classes), two hidden
    layers.

    Ψ = inputs·h + h² + h·classes weights plus 2h + classes biases: 269,322 at h = 256 and
    1,863,690 at h = 1024.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, classes),
    )


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`; the symbols are Megatron-LM's (arXiv:2104.04473)."""

    vocab_size: int = 256  # V: one token a byte
    sequence_length: int = 64  # s
    hidden_size: int = 64  # h
    layers: int = 2  # l
    heads: int = 4  # a


class Attention(nn.Module):
    """Causal self-attention, (batch, seq, hidden) → the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        if config.hidden_size % config.heads:
            raise ValueError(
                f"hidden_size {config.hidden_size} does not divide into {config.heads} heads"
            )
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BSH: Tensor) -> Tensor:
        batch, sequence, hidden = x_BSH.shape
        q, k, v = (
            part.view(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(x_BSH).chunk(3, dim=-1)
        )  # each (batch, heads, seq, hidden / heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, sequence, hidden))


class Block(nn.Module):
    """One pre-norm transformer layer: attention and a 4h-wide MLP, each added to its input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h))

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_BSH = x_BSH + self.attention(self.norm_1(x_BSH))
        return x_BSH + self.mlp(self.norm_2(x_BSH))


class GPT(nn.Module):
    """A small GPT over bytes. The output layer *is* the embedding: one weight, used twice.

    `model(tokens)` with tokens (batch, seq) int64 → scores (batch, seq, vocab) float32.
    """

    def __init__(self, config: GPTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.sequence_length, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.unembed = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)
        self.unembed.weight = self.tokens.weight  # tied

    def forward(self, tokens_BS: Tensor) -> Tensor:
        sequence = tokens_BS.shape[1]
        if sequence > self.config.sequence_length:
            raise ValueError(f"{sequence} tokens, but this GPT has room for "
                             f"{self.config.sequence_length}: raise sequence_length")  # fmt: skip
        x_BSH = self.tokens(tokens_BS) + self.positions.weight[:sequence]
        for block in self.blocks:
            x_BSH = block(x_BSH)
        return self.unembed(self.norm(x_BSH))


class Awkward(nn.Module):
    """A classifier with every feature that breaks naive data parallelism.

    `model(tokens)` with tokens (batch,) int64 → scores (batch, vocab) float32.

    - `embed.weight` and `unembed.weight` are one tied parameter;
    - `frozen.weight` does not require a gradient;
    - `unused` requires one, but never gets it;
    - `scale` is a buffer that the forward pass uses, `seen` an integer buffer of shape ().
    """

    def __init__(self, vocab_size: int = 11, hidden_size: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.frozen = nn.Linear(hidden_size, hidden_size, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.hidden = nn.Linear(hidden_size, hidden_size)
        self.unused = nn.Parameter(torch.randn(3))
        self.unembed = nn.Linear(hidden_size, vocab_size)
        self.unembed.weight = self.embed.weight  # tied
        self.register_buffer("scale", torch.rand(hidden_size) + 0.5)
        self.register_buffer("seen", torch.randint(1_000_000, ()))

    def forward(self, tokens_B: Tensor) -> Tensor:
        x_BH = self.frozen(self.embed(tokens_B)) * self.scale
        return self.unembed(torch.tanh(self.hidden(x_BH)))


def parameter_count(model: nn.Module) -> int:
    """Ψ: parameters of a model, a tied one counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
