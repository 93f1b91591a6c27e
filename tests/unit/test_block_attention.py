"""Attention over blocks of keys: the merged results equal attention over all keys."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from parlab.block_attention import attend, attend_backward

MASKS = {
    "no mask": None,
    "a triangle": torch.ones(6, 6).tril().bool(),
    "half of the keys": torch.arange(6).expand(6, -1) < 3,
    "half of the queries": (torch.arange(6) >= 3)[:, None].expand(-1, 6),
}


def tensors(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 2, 3, 6, 4, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("name", MASKS)
def test_a_block_alone_is_attention(name: str) -> None:
    visible, (q, k, v) = MASKS[name], tensors(3)
    out, lse = attend(q, k, v, visible)
    scores = q @ k.mT / 2
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    finite = lse.isfinite()
    right = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    torch.testing.assert_close(out[finite], right[finite])
    assert not out[~finite].any()


@pytest.mark.parametrize("name", MASKS)
def test_gradients_of_two_blocks_add_up_to_those_of_autograd(name: str) -> None:
    """Each query sees the whole second block, so every query sees something."""
    visible, (q, k, v, more_k, more_v, gradient) = MASKS[name], tensors(6)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, more_k, more_v)]
    keys, values = torch.cat(leaves[1::2], -2), torch.cat(leaves[2::2], -2)
    all_seen = torch.ones(6, 6, dtype=torch.bool)
    both = torch.cat([all_seen if visible is None else visible, all_seen], 1)
    out = F.scaled_dot_product_attention(leaves[0], keys, values, attn_mask=both)
    out.backward(gradient)
    lse = (q @ keys.mT / 2).masked_fill(~both, -torch.inf).logsumexp(-1).detach()
    of_q, *of_first = attend_backward(gradient, out.detach(), lse, q, k, v, visible)
    more_of_q, *of_second = attend_backward(gradient, out.detach(), lse, q, more_k, more_v, None)
    found = [of_q + more_of_q, *of_first, *of_second]
    torch.testing.assert_close(found, [x.grad for x in leaves])


def test_what_nobody_sees_is_not_computed() -> None:
    q, k, v = tensors(3)
    flops = {}
    for name, visible in MASKS.items():
        with FlopCounterMode(display=False) as counter:
            attend(q, k, v, visible)
        flops[name] = counter.get_total_flops()
    assert flops["half of the keys"] == flops["half of the queries"] == flops["no mask"] / 2
    assert flops["a triangle"] == flops["no mask"]
