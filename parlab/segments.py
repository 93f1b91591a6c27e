"""Cuts a GPT into segments, measures each one, and runs a step in which some are recomputed.

functions = segments.of_gpt(model, targets)
profile = segments.measured(functions, x, model, checkpoint)  # bytes and FLOPs of each one
loss = segments.run(functions, keep, x, checkpoint)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from parlab import memory
from parlab.costs.recomputation import Segment
from parlab.models import GPT, Block

Function = Callable[[Tensor], Tensor]
Checkpoint = Callable[[Function, Tensor], Tensor]


def count_flops() -> FlopCounterMode:
    """Return a context in which FLOPs are counted, attention included: `get_total_flops()`."""
    # PyTorch's own counter does not know the fused attention of the CPU.
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mapping = {forward: _attention_flops, backward: _attention_backward_flops}
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _attention_flops(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    """Return the FLOPs of the forward pass for shapes (batch, heads, seq, head size)."""
    return sdpa_flop_count(q, k, v)


def _attention_backward_flops(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the backward pass, in which fused attention computes its scores again."""
    return sdpa_backward_flop_count(gradient, q, k, v)


def of_gpt(model: GPT, targets: Tensor) -> list[Function]:
    """Return the functions whose chain is the model's loss on the targets.

    Each block becomes two functions, attention and MLP, each with its norm and addition. The last
    function computes the mean cross-entropy from the last block's output. The first one takes the
    result of `embedded`.
    """
    halves = [partial(half, block) for block in model.blocks for half in (_attention, _mlp)]
    return [*halves, partial(_loss, model, targets)]


def embedded(model: GPT, tokens: Tensor) -> Tensor:
    """Return the input of the first block, (batch, seq, hidden)."""
    return model.tokens(tokens) + model.positions.weight[: tokens.shape[1]]


def measured(
    functions: Sequence[Function], x: Tensor, model: nn.Module, checkpoint: Checkpoint
) -> list[Segment]:
    """Measure each function on its own. Its input is the output of the previous one."""
    zero_gradients(model)
    profile = []
    for function in functions:
        x = x.detach().requires_grad_()
        with memory.Saved(model) as saved, count_flops() as counter:
            output = function(x).detach()
        with memory.Peak(x.device) as peak:
            _step(function, x)
        with memory.Peak(x.device) as recomputed:
            _step(partial(checkpoint, function), x)
        highest = max(peak.bytes, recomputed.bytes)
        profile.append(Segment(x.nbytes, saved.bytes, highest, counter.get_total_flops()))
        x = output
    return profile


def run(
    functions: Sequence[Function],
    keep: Sequence[bool],
    x: Tensor,
    checkpoint: Checkpoint,
) -> Tensor:
    """Return the result of the chain. Run functions with `keep` False through `checkpoint`."""
    for function, kept in zip(functions, keep, strict=True):
        x = function(x) if kept else checkpoint(function, x)
    return x


def zero_gradients(model: nn.Module) -> None:
    """Set all gradients to tensors of zeros, so that a measured step does not allocate any."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def _step(function: Function, x: Tensor) -> None:
    """Run both passes on a copy of x. The product makes the gradient a full tensor, as usual."""
    (function(x.clone()) * 1.0).sum().backward()


def _attention(block: Block, x: Tensor) -> Tensor:
    return x + block.attention(block.norm_1(x))


def _mlp(block: Block, x: Tensor) -> Tensor:
    return x + block.mlp(block.norm_2(x))


def _loss(model: GPT, targets: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(model.unembed(model.norm(x)).flatten(0, 1), targets.flatten())
