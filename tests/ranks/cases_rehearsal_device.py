"""The rehearsal's device refuses what a GPU refuses, and computes what a GPU computes."""

import copy
import ctypes
import os
import pickle

import numpy as np
import torch
from torch import nn

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


@cases.add()
def operations_and_gradients(world: World) -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    device = copy.deepcopy(host).cuda()
    x = torch.randn(5, 8)
    for model, inputs in ((host, x), (device, x.cuda())):
        nn.functional.cross_entropy(model(inputs), inputs.new_zeros(5).long()).backward()
    for one, other in zip(host.parameters(), device.parameters(), strict=True):
        assert other.grad.is_cuda
        torch.testing.assert_close(one.grad, other.grad.cpu())


@cases.add()
def tensors_of_two_devices_are_refused(world: World) -> None:
    x = torch.ones(3, device="cuda")
    with expecting(RuntimeError, "Expected all tensors to be on the same device"):
        x + torch.ones(3)
    with expecting(TypeError, "can't convert cuda:"):
        x.numpy()
    with expecting(RuntimeError, "Expected a 'cuda' device type for generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())
    with expecting(RuntimeError, "invalid device ordinal"):
        torch.ones(1, device="cuda:7")


@cases.add()
def the_host_cannot_read_device_memory(world: World) -> None:
    """The system refuses to write device memory into a pipe. Reading it would end the program."""
    x = torch.ones(1024, device="cuda")
    reading, writing = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        address = ctypes.c_void_p(x.data_ptr())
        assert libc.write(writing, address, ctypes.c_size_t(4)) == -1
        assert ctypes.get_errno() == 14  # EFAULT
    finally:
        os.close(reading)
        os.close(writing)


@cases.add()
def memory_is_counted_and_not_cleared(world: World) -> None:
    before = torch.cuda.memory_allocated()
    x = torch.full((1000,), 7.0, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4096
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4096
    y = torch.empty(1000, device="cuda")
    assert y.abs().sum() > 0  # what was there before


@cases.add()
def numbers_differ_as_on_another_machine(world: World) -> None:
    torch.manual_seed(3)
    host = torch.randn(100)
    torch.manual_seed(3)
    assert not torch.equal(host, torch.randn(100, device="cuda").cpu())
    a = torch.arange(1.0, 4001.0).sqrt().view(40, 100)
    product, same = a @ a.t(), (a.cuda() @ a.t().cuda()).cpu()
    assert not torch.equal(product, same)
    torch.testing.assert_close(product, same)
    ones = torch.ones(40, 40, device="cuda")
    assert torch.equal((ones @ ones).cpu(), torch.full((40, 40), 40.0))  # short numbers are exact


@cases.add()
def copies_and_pickles(world: World) -> None:
    parameter = nn.Parameter(torch.arange(4.0, device="cuda"))
    for made in (copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
        assert isinstance(made, nn.Parameter) and made.device == parameter.device
        assert made.data_ptr() != parameter.data_ptr()
        assert torch.equal(made, parameter)
    storage = parameter.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    assert storage.nbytes() == 16


@cases.add()
def a_stream_that_does_not_wait_is_seen(world: World) -> None:
    other = torch.cuda.Stream()
    x = torch.ones(10, device="cuda")
    with torch.cuda.stream(other):
        x.view(2, 5).t()  # uses no memory
    with expecting(RuntimeError, "may still write"), torch.cuda.stream(other):
        x + 1
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = x + 1
        event = torch.cuda.Event()
        event.record()
    with expecting(RuntimeError, "may still read"):
        x.zero_()
    with expecting(RuntimeError, "may still write"):
        y.sum()
    torch.cuda.current_stream().wait_event(event)
    assert y.sum().item() == 20
    x.zero_()


@cases.add()
def the_host_that_does_not_wait_is_seen(world: World) -> None:
    x = torch.arange(1000.0, device="cuda")
    room = torch.empty(1000, pin_memory=True)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    y = x * 2
    room.copy_(y, non_blocking=True)
    end.record()
    assert room[3] != 6 and not end.query()
    with expecting(RuntimeError, "device not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert room[3] == 6 and start.elapsed_time(end) > 0


@cases.add()
def a_stream_that_waits_reads_pinned_memory_before_the_host_can(world: World) -> None:
    x = torch.arange(1000.0, device="cuda")
    room = torch.empty(1000, pin_memory=True)
    other = torch.cuda.Stream()
    room.copy_(x, non_blocking=True)
    with torch.cuda.stream(other):
        early = torch.empty(1000, device="cuda")
        early.copy_(room, non_blocking=True)
        other.wait_stream(torch.cuda.default_stream())
        late = torch.empty(1000, device="cuda")
        late.copy_(room, non_blocking=True)
        assert early[3].item() != 3 and torch.equal(late.cpu(), torch.arange(1000.0))


@cases.add()
def offloaded_activations_come_back_from_pinned_memory(world: World) -> None:
    from parlab.activation_stores import PinnedStore

    store = PinnedStore(torch.device("cuda"))
    sent = [torch.full((size,), size, dtype=torch.uint8, device="cuda") for size in (7, 90, 7)]
    tickets = [store.write(numbers) for numbers in sent]
    for ticket, size in zip(reversed(tickets), (7, 90, 7), strict=True):
        back = [ticket.read() + 1 for _ in range(2)]
        assert all(torch.equal(numbers.cpu(), torch.full((size,), size + 1)) for numbers in back)


@cases.add()
def a_kernel_refuses_tensors_of_the_host(world: World) -> None:
    import triton
    import triton.language as tl

    import parlab.kernels  # noqa: F401, which the rehearsal changes
    from parlab.kernels import INTERPRETED

    @triton.jit
    def double(x, n, BLOCK: tl.constexpr):
        places = tl.arange(0, BLOCK)
        tl.store(x + places, 2 * tl.load(x + places, mask=places < n), mask=places < n)

    assert not INTERPRETED
    x = torch.arange(5.0, device="cuda")
    double[(1,)](x, 5, BLOCK=8)
    assert np.array_equal(x.cpu().numpy(), 2 * np.arange(5))
    with expecting(ValueError, "cannot be accessed from Triton"):
        double[(1,)](x.cpu(), 5, BLOCK=8)
