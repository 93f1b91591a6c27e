"""Copies CUDA tensors through the host's memory, because MPI reads and writes only that.

A method of the group states which of its arguments it sends from and which it receives into. If
these are CUDA tensors, the method gets tensors on the host instead. They are copies if it sends
from them, and otherwise empty. Afterward, the received data is copied to the GPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Staging:
    """The host's tensors that take the place of the CUDA tensors of one call."""

    def __init__(self) -> None:
        self._received: list[tuple[torch.Tensor, torch.Tensor]] = []  # on the host, on the GPU
        self._originals: dict[int, torch.Tensor] = {}  # by the id of the tensor on the host
        self._kept: list[torch.Tensor] = []  # so that no other tensor gets one of these ids

    def on_host(self, value: Any, *, sends: bool, receives: bool) -> Any:
        """Return `value`, a tensor or nested lists of tensors, with CUDA tensors replaced."""
        if isinstance(value, list | tuple):
            return [self.on_host(item, sends=sends, receives=receives) for item in value]
        if not value.is_cuda:
            return value
        tensor = value.detach()
        # `cpu` waits for the kernels that compute the tensor.
        host = tensor.cpu() if sends else torch.empty_like(tensor, device="cpu")
        self._originals[id(host)] = value
        self._kept.append(host)
        if receives:
            self._received.append((host, tensor))
        return host

    def original(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the caller's tensor that `tensor`, the group's tensor, replaces."""
        return self._originals.get(id(tensor), tensor)

    def copy_back(self) -> None:
        """Copy the received data to the GPU."""
        for host, tensor in self._received:
            tensor.copy_(host)


def through_host(*, receives: Sequence[int] = (), sends: Sequence[int] = ()) -> Callable:
    """Return a decorator for a method of the group that takes tensors on the CPU.

    The method must return a Work whose `deliver(staging)` copies the received data to the GPU.

    Args:
        receives: positions of the arguments that the method writes into.
        sends: positions of the arguments that it reads. An argument in both is changed in place.
    """
    staged = sorted({*receives, *sends})

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if not any(_has_cuda(arguments[i]) for i in staged):
                return method(self, *arguments, **options)
            staging, on_host = Staging(), list(arguments)
            for i in staged:
                on_host[i] = staging.on_host(arguments[i], sends=i in sends, receives=i in receives)
            work = method(self, *on_host, **options)
            work.deliver(staging)
            return work

        return call

    return decorate


def _has_cuda(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    return isinstance(value, list | tuple) and any(map(_has_cuda, value))
