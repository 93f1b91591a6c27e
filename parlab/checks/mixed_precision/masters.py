"""Master weights as the exercises describe them: what a check compares with, and hands out."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


class Masters:
    """Float32 copies of a model's trainable 16-bit parameters, and an optimizer on them."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        halves = [parameter.detach() for parameter in self.parameters]
        self.master = [nn.Parameter(half.to(torch.float32)) for half in halves]
        self.optimizer = make_optimizer(self.master)

    def collect(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        for place, gradient in enumerate(gradients):
            self.parameters[place].grad = None
            self.master[place].grad = None if gradient is None else gradient.to(torch.float32)

    def step(self) -> None:
        self.optimizer.step()
        with torch.no_grad():
            for place, master in enumerate(self.master):
                self.parameters[place].copy_(master)

    def values(self) -> list[Tensor]:
        """Of the copies, as they are now."""
        return [copy.detach().clone() for copy in self.master]


class Watched(Masters):
    """Notes what each step of the optimizer begins with, and how many are the masters' own."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer)
        self.own_steps = 0
        self.rates: list[list[float]] = []  # a list for each step of the optimizer
        self.given: list[list[Tensor | None]] = []
        self.optimizer.register_step_pre_hook(lambda *_: self._look())

    def forget(self) -> None:
        self.own_steps, self.rates, self.given = 0, [], []

    def step(self) -> None:
        self.own_steps += 1
        super().step()

    def _look(self) -> None:
        self.rates.append([group["lr"] for group in self.optimizer.param_groups])
        gradients = [master.grad for master in self.master]
        self.given.append([None if g is None else g.detach().clone() for g in gradients])
