"""A layer whose forward and backward passes take a fixed time, in which the rank sleeps."""

import threading
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from parlab.network.clock import now, sleep_until


class Stage(nn.Module):
    """Runs `module`, with passes that take `forward` and `backward` seconds.

    It returns the same output as `module`, and has the same parameters. Both times include the time
    of the module itself, which must be shorter. The gradients of the parameters are complete at the
    end of the backward pass. The rank sleeps for the remaining time, so many ranks can be timed on
    few cores. If the system wakes the rank late, the next stage of the same backward pass is
    shorter, so delays do not add up.

    Raises ValueError if a time is negative.
    """

    def __init__(self, module: nn.Module, forward: float, backward: float) -> None:
        super().__init__()
        for name, seconds in {"forward": forward, "backward": backward}.items():
            if not seconds >= 0:
                raise ValueError(f"Stage: {name} takes 0 s or more, not {seconds!r}")
        self.module = module
        self.forward_seconds, self.backward_seconds = forward, backward

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        end = now() + self.forward_seconds
        # The backward pass runs `_Begin`, then the module, then `_End`. `_End` gets the gradients
        # of all inputs and parameters, and holds them until the time is over.
        backward = _Backward(self.backward_seconds)
        parameters = dict(self.module.named_parameters())
        tensors = _ended([*inputs, *parameters.values()], backward)
        given, weights = tensors[: len(inputs)], tensors[len(inputs) :]
        named = dict(zip(parameters, weights, strict=True))
        output = _Begin.apply(functional_call(self.module, named, given), backward)
        sleep_until(end)
        return output

    def extra_repr(self) -> str:
        return f"forward {self.forward_seconds} s, backward {self.backward_seconds} s, both set"


class _Backward:
    """A stage's backward pass, which takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, 0.0

    def begin(self) -> None:
        """Start the time now, or earlier if the previous stage of this backward pass woke late."""
        self._end = now() + self._seconds
        if _last.backward_pass == torch._C._current_graph_task_id():
            self._end -= _last.late
            _last.late = 0.0

    def end(self) -> None:
        """Sleep until the backward pass is over."""
        _last.late = sleep_until(self._end)
        _last.backward_pass = torch._C._current_graph_task_id()


class _Last(threading.local):
    """Records how late this thread woke at the end of a stage, and in which backward pass."""

    late, backward_pass = 0.0, -1


_last = _Last()


def _ended(tensors: list[torch.Tensor], backward: _Backward) -> tuple[torch.Tensor, ...]:
    """Return the same tensors, whose gradients arrive only when the backward pass is over."""
    wanted = iter(_End.apply(backward, *(t for t in tensors if t.requires_grad)))
    return tuple(next(wanted) if t.requires_grad else t for t in tensors)


class _Begin(torch.autograd.Function):
    """The identity. Its `backward` begins the backward pass of the stage."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backward: _Backward) -> torch.Tensor:
        ctx.stage = backward
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.stage.begin()
        return gradient, None


class _End(torch.autograd.Function):
    """The identity. Its `backward` ends the backward pass of the stage."""

    @staticmethod
    def forward(ctx: Any, backward: _Backward, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.stage = backward
        ctx.set_materialize_grads(False)  # so that an unused weight gets no gradient
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.stage.end()
        return None, *gradients
