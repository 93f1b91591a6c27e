"""Attention over the tokens of all ranks, the reference for methods for long sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor

from parlab.checks.base.trial import Trial


def drawn(
    trial: Trial, shape: tuple[int, ...], layout: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[Tensor]]:
    """Draw queries, keys, values, and the gradient of the output.

    Args:
        shape: batch, tokens of all ranks, heads, head size.
        layout: the layout of this rank's tensors in memory: "contiguous"; "slices" of one tensor;
            heads before tokens ("transposed"); or contiguous with an "expanded" gradient.

    Returns:
        The tensors of all ranks (4, *shape), and this rank's four tensors. q, k, and v are leaves.
    """
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    whole = torch.randn(4, *shape, dtype=dtype, generator=generator)
    if layout == "expanded":
        whole[3] = whole[3, 0, 0, 0, 0]
    *own, gradient = own_part(trial, whole.clone())
    if layout == "transposed":
        own = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in own]
    elif layout != "slices":
        own = [x.contiguous() for x in own]
    gradient = gradient.contiguous()
    if layout == "expanded":
        gradient = gradient[:1, :1, :1, :1].expand_as(gradient)
    return whole, [*(x.detach().requires_grad_() for x in own), gradient]


def own_part(trial: Trial, whole: Tensor) -> Tensor:
    """Return this rank's tokens of (…, batch, tokens, heads, head size)."""
    return whole.chunk(trial.size, dim=-3)[trial.rank]


def serial(whole: Tensor, visible: Tensor | None) -> list[Tensor]:
    """Return the output for the tokens of all ranks, and the gradients of q, k, and v.

    `visible` (tokens, tokens) is True where a query sees a key; None if all queries see all keys.
    """
    leaves = [x.clone().requires_grad_() for x in whole[:3]]
    heads_first = (x.transpose(1, 2) for x in leaves)
    output = F.scaled_dot_product_attention(*heads_first, attn_mask=visible).transpose(1, 2)
    return [output.detach(), *torch.autograd.grad(output, leaves, whole[3])]
