"""Measured numbers of bytes, compared with known numbers."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from parlab import memory


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))


PARAMETERS = 4 * (100 * 200 + 200 + 200 * 10 + 10)


def test_states_of_adam_are_twice_the_parameters() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    assert memory.model_states(net, optimizer) == memory.ModelStates(PARAMETERS, 0, 0)
    net(torch.ones(3, 100)).sum().backward()
    optimizer.step()
    states = memory.model_states(net, optimizer)
    assert (states.parameters, states.gradients) == (PARAMETERS, PARAMETERS)
    assert states.optimizer_states == 2 * PARAMETERS + 4 * 4  # and a step count for each of four
    assert states.total == 4 * PARAMETERS + 16


def test_shared_storages_count_once() -> None:
    net = model()
    net.add_module("again", net[0])
    assert memory.parameter_bytes(net) == PARAMETERS
    flat = torch.zeros(PARAMETERS // 4)
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    assert memory.gradient_bytes(net) == PARAMETERS
    first = next(net.parameters())
    assert memory.tensor_bytes([first.grad, first.grad[0]]) == PARAMETERS, "a view keeps it all"


def test_buffers_are_not_parameters() -> None:
    norm = nn.BatchNorm1d(8)
    assert memory.buffer_bytes(norm) == 2 * 8 * 4 + 8
    assert memory.parameter_bytes(norm) == 2 * 8 * 4


def test_peak_is_what_lives_at_the_same_time() -> None:
    x = torch.ones(1000)
    with memory.Peak() as peak:
        y = x * 2
        z = y + 1
        del y
        w = z.double()
        del z
        del w
    assert peak.bytes == 4000 + 8000


def test_views_and_changes_in_place_take_no_memory() -> None:
    x = torch.ones(1000)
    with memory.Peak() as peak:
        x.add_(1)
        x[:10].mul_(2)
        x.view(10, 100).t()
        assert x.detach().data_ptr() == x.data_ptr()
    assert peak.bytes == 0


def test_resizing_counts() -> None:
    with memory.Peak() as peak:
        x = torch.zeros(500)
        x.resize_(1500)
    assert peak.bytes == 6000


def activations(checkpointed: bool) -> int:
    """Return the peak memory of ten layers' forward and backward passes."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(10))
    x = torch.ones(256, 64, requires_grad=True)
    with memory.Peak() as peak:
        y = x
        for layer in layers:

            def block(z: torch.Tensor, layer: nn.Module = layer) -> torch.Tensor:
                return torch.tanh(layer(z).relu())

            y = checkpoint(block, y, use_reentrant=False) if checkpointed else block(y)
        y.sum().backward()
    return peak.bytes


def test_peak_sees_what_checkpointing_saves() -> None:
    layer = 256 * 64 * 4
    # For each layer, the outputs of relu and tanh are kept, but with checkpointing only its input.
    assert 20 * layer <= activations(checkpointed=False) <= 23 * layer
    assert 9 * layer <= activations(checkpointed=True) <= 14 * layer


def test_a_device_that_is_not_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="use a CPU or CUDA device"), memory.Peak("meta"):
        pass


def test_saved_is_what_the_backward_pass_needs() -> None:
    net = model()
    x = torch.ones(3, 100)
    with memory.Saved(net) as saved:
        net(x)
    # The input, and ReLU's output, which is the second layer's input. Parameters do not count.
    assert saved.bytes == 4 * (3 * 100 + 3 * 200)
    with memory.Saved(net) as nothing, torch.no_grad():
        net(x)
    assert nothing.bytes == 0
    with memory.Saved(net) as again:
        checkpoint(net, x.requires_grad_(), use_reentrant=False)
    assert again.bytes < saved.bytes


def test_saved_lets_a_graph_go() -> None:
    layer = nn.Linear(100, 100)
    with memory.LiveStorages() as live, memory.Saved(layer) as saved:
        layer(torch.ones(3, 100)).softmax(-1)
    assert saved.bytes == 4 * (300 + 300)
    assert live.live == 0, "softmax keeps its own output"


def test_history_has_the_bytes_after_each_operation() -> None:
    with memory.History() as history:
        x = torch.ones(1000)
        y = x * 2
        history.mark("sum")
        del x
        total = y.sum()
        history.mark("end")
    assert history.bytes == [4000, 8000, 4000 + 4]
    assert history.marks == {"sum": 2, "end": 3}
    assert history.peak == 8000
    assert total == 2000


def test_the_process_grows_and_shrinks_with_its_tensors() -> None:
    before = memory.process_bytes(torch.device("cpu"))
    tensors = [torch.ones(25_000) for _ in range(400)]  # each is too small to have its own pages
    during = memory.process_bytes(torch.device("cpu"))
    del tensors
    after = memory.process_bytes(torch.device("cpu"))
    assert during - before > 36e6
    assert during - after > 36e6
