"""The common part of the benchmarks of training steps: an MLP and this rank's images."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


class MnistTrainer:
    """An MLP from a fixed start, and this rank's share of MNIST; `step()` trains once."""

    def __init__(self, hidden_size: int, images_per_rank: int) -> None:
        import torch

        from parlab import models
        from parlab.data import mnist
        from parlab.rank import rank, world_size

        self.world_size = world_size
        images, labels = mnist("train", images_per_rank * world_size)
        self.images = torch.from_numpy(images[rank::world_size])
        self.labels = torch.from_numpy(labels[rank::world_size])
        torch.manual_seed(0)
        self.model = models.mlp(hidden_size)

    def loss(self, model: "nn.Module") -> "torch.Tensor":
        from torch.nn.functional import cross_entropy

        return cross_entropy(model(self.images), self.labels)

    def step(self) -> Any:
        """Train once. Before timing, the benchmark compares the returned values of both sides."""
        raise NotImplementedError

    def timed(self) -> None:
        """Do a step and return nothing, because a returned number would count as seconds."""
        self.step()


def adam(parameters: Any) -> "torch.optim.Optimizer":
    """Return the library's fastest Adam on a CPU."""
    import torch

    return torch.optim.Adam(parameters, lr=1e-3, fused=True)
