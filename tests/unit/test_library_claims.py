"""The book's statements about PyTorch and Triton are true for the installed versions."""

import inspect
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from triton.runtime import _allocation


# Chapter 1
def test_only_gather_takes_its_input_first() -> None:
    first = {of.__name__: next(iter(inspect.signature(of).parameters)) for of in (
        dist.gather, dist.scatter, dist.all_gather, dist.reduce_scatter, dist.all_to_all
    )}  # fmt: skip
    assert first == {
        "gather": "tensor",
        "scatter": "tensor",  # the output: `scatter_list` is the input
        "all_gather": "tensor_list",
        "reduce_scatter": "output",
        "all_to_all": "output_tensor_list",
    }


# Chapter 3
def by_data(view: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.empty(2, 2))
    parameter.data = view
    return parameter


@pytest.mark.parametrize(("bind", "works"), [(by_data, True), (nn.Parameter, False)])
def test_a_gather_into_the_buffer_must_not_count_as_a_change(
    bind: Callable[[Tensor], nn.Parameter], works: bool
) -> None:
    flat = torch.arange(4.0)
    weight = bind(flat.view(2, 2))
    loss = (torch.ones(1, 2, requires_grad=True) @ weight).sum()
    flat.copy_(torch.arange(4.0))  # stands for the all-gather
    if works:
        loss.backward()
        assert torch.equal(weight.grad, torch.ones(2, 2))
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# Chapter 4
@pytest.mark.parametrize("dim", [0, 1])
def test_a_wrong_slice_of_a_square_weight_does_not_fit(dim: int) -> None:
    weight, x = torch.ones(8, 8), torch.ones(3, 8)
    given = x if dim else x[:, :4]
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        F.linear(given, weight.chunk(2, dim)[0])


# Chapter 6
def test_a_mask_of_minus_a_billion_in_float16() -> None:
    scores, mask = torch.zeros(2).half(), torch.tensor([True, True])
    with pytest.raises(RuntimeError, match="overflow"):
        scores.masked_fill(mask, -1e9)
    assert torch.equal(scores + torch.tensor(-1e9).half(), torch.full((2,), -torch.inf).half())
    assert (scores - torch.inf).softmax(0).isnan().all()


# Chapter 7
def test_an_allocator_is_of_one_thread() -> None:
    found = []

    def own_thread() -> None:
        triton.set_allocator(lambda size, alignment, stream: None)
        other = threading.Thread(target=lambda: found.append(_allocation._allocator.get()))
        other.start()
        other.join()
        found.append(_allocation._allocator.get())

    thread = threading.Thread(target=own_thread)
    thread.start()
    thread.join()
    assert isinstance(found[0], _allocation.NullAllocator)
    assert not isinstance(found[1], _allocation.NullAllocator)


# Chapter 8
def test_reentrant_segments_after_an_input_without_gradient_get_none() -> None:
    layers = [nn.Linear(2, 2) for _ in range(3)]
    x = torch.ones(1, 2)
    for layer in layers[:2]:
        x = checkpoint(layer, x, use_reentrant=True)
    layers[2](x).sum().backward()
    assert [layer.weight.grad is None for layer in layers] == [True, True, False]


@pytest.mark.parametrize(("options", "calls"), [({}, 3), ({"early_stop": False}, 4)])
def test_the_early_stop_skips_the_all_reduce_at_the_end_of_a_layer(
    options: dict[str, bool], calls: int
) -> None:
    made = []

    class AllReduce(torch.autograd.Function):
        """g of chapter 4: it needs no tensor in the backward pass."""

        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            made.append(1)
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient

    first, second = nn.Linear(2, 2), nn.Linear(2, 2)

    def layer(x: Tensor) -> Tensor:
        x = x + AllReduce.apply(first(x))
        return x + AllReduce.apply(second(F.gelu(x)))

    x = torch.ones(1, 2, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False, **options).sum().backward()
    assert len(made) == calls
