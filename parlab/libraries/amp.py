"""PyTorch's own mixed precision: `torch.autocast` and `torch.amp.GradScaler`, under DDP."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class AutocastTraining:
    """Trains in float16 with the library, over the default group.

    Args:
        model: a model with float32 parameters, which are the master weights.
        lr: learning rate of SGD.
        scale: the first scale of the loss.
        growth_interval: steps without overflow after which the scale grows.
    """

    def __init__(self, model: nn.Module, lr: float, scale: float, growth_interval: int) -> None:
        self.device = next(model.parameters()).device.type
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler(self.device, scale, growth_interval=growth_interval)

    def step(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Take a step on this rank's samples. Return its loss, and the scale after the step."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), self.scaler.get_scale()
