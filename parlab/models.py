"""The small models of the labs: an MLP for MNIST, a byte-level GPT, and models built to be awkward.

They run in milliseconds on one core and have the same components as large models: tied weights,
layer norm, and attention. They have no dropout, so that each number of a run on N ranks can be
compared with a run on one rank.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(hidden_size: int = 256, *, inputs: int = 784, classes: int = 10) -> nn.Sequential:
    """Return an MLP with two hidden layers.

    It maps images (batch, 28, 28) or vectors (batch, inputs) to scores (batch, classes). Ψ is
    inputs·h + h² + h·classes weights plus 2h + classes biases: 269,322 for h = 256, and 1,863,690
    for h = 1024.
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
    """The sizes of a `GPT`, with the symbols of Megatron-LM (arXiv:2104.04473)."""

    vocab_size: int = 256  # V: each byte is a token
    sequence_length: int = 64  # s
    hidden_size: int = 64  # h
    layers: int = 2  # l
    heads: int = 4  # a
    key_value_heads: int | None = None  # None: as many as `heads`


class Attention(nn.Module):
    """Causal self-attention, (batch, seq, hidden) → the same shape.

    `qkv` combines three layers: its outputs are the queries of all heads, then the keys, then the
    values. With fewer `key_value_heads` than `heads`, several consecutive heads share one of them
    (grouped-query attention, arXiv:2305.13245).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        if config.hidden_size % config.heads:
            raise ValueError(
                f"heads = {config.heads} does not divide hidden_size = {config.hidden_size}"
            )
        self.heads = config.heads
        self.key_value_heads = config.key_value_heads or config.heads
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.key_value_heads} heads of keys and values"
            )
        self.head_size = config.hidden_size // config.heads
        self.qkv = nn.Linear(config.hidden_size, sum(self.sections))
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    @property
    def sections(self) -> list[int]:
        """The numbers of outputs of `qkv` that are queries, keys, and values."""
        return [n * self.head_size for n in (self.heads, *2 * [self.key_value_heads])]

    def forward(self, x_BSH: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for part in self.qkv(x_BSH).split(self.sections, dim=-1)
        )  # each (batch, heads, seq, head size)
        grouped = self.key_value_heads < self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).flatten(2))


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
    """A small GPT over bytes. The embedding and the output layer use the same weight.

    `model(tokens)` maps tokens (batch, seq) int64 to scores (batch, seq, vocab) float32.
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

    `model(tokens)` maps tokens (batch,) int64 to scores (batch, vocab) float32.

    - `embed.weight` and `unembed.weight` are the same parameter;
    - `frozen.weight` does not require a gradient;
    - `unused` requires a gradient, but never gets one;
    - `scale` is a buffer that the forward pass uses, and `seen` is an integer buffer of shape ();
    - `shift` is a buffer that the forward pass also uses, but that `state_dict()` leaves out.
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
        self.register_buffer("shift", torch.rand(hidden_size), persistent=False)

    def forward(self, tokens_B: Tensor) -> Tensor:
        x_BH = self.frozen(self.embed(tokens_B)) * self.scale + self.shift
        return self.unembed(torch.tanh(self.hidden(x_BH)))


def parameter_count(model: nn.Module) -> int:
    """Return Ψ, the number of parameters of a model. A tied parameter counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
