"""Lab 08's loss in chunks against PyTorch's losses, in one process with one thread.

Both sides compute the same loss, and the same gradients of hidden states and output weight. The
peak is the memory of a forward and a backward pass, as `parlab.memory` counts it.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch

TOKENS, VOCABULARY, HIDDEN_SIZE, CHUNK = 2048, 32_000, 256, 256


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("08_memory")


class Losses:
    """The same hidden states, weight, and targets for each way to compute the loss."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self.hidden = torch.randn(TOKENS, HIDDEN_SIZE, requires_grad=True)
        self.weight = (torch.randn(VOCABULARY, HIDDEN_SIZE) / HIDDEN_SIZE**0.5).requires_grad_()
        self.targets = torch.randint(VOCABULARY, (TOKENS,))
        self.targets[::9] = -100

    def gradients(self, loss_of: Callable) -> list["torch.Tensor"]:
        """Run a forward and a backward pass. Return the loss and both gradients."""
        self.hidden.grad = self.weight.grad = None
        loss = loss_of(self.hidden, self.weight, self.targets)
        loss.backward()
        return [loss.detach(), self.hidden.grad, self.weight.grad]

    def seconds(self, loss_of: Callable) -> Callable[[], None]:
        def run() -> None:
            self.gradients(loss_of)

        return run

    def peak(self, loss_of: Callable) -> Callable[[], int]:
        from parlab import memory

        def run() -> int:
            self.hidden.grad = self.weight.grad = None
            with memory.Peak() as peak:
                self.gradients(loss_of)
            return peak.bytes

        return run


def in_chunks(hidden: "torch.Tensor", weight: "torch.Tensor", targets: "torch.Tensor") -> Any:
    return lab()["chunked_cross_entropy"](hidden, weight, targets, CHUNK)


def plain(hidden: "torch.Tensor", weight: "torch.Tensor", targets: "torch.Tensor") -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(hidden @ weight.T, targets)


def library_chunks(hidden: "torch.Tensor", weight: "torch.Tensor", targets: "torch.Tensor") -> Any:
    from torch.nn import LinearCrossEntropyOptions
    from torch.nn.functional import linear_cross_entropy

    options = LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=CHUNK)
    return linear_cross_entropy(hidden, weight, targets, options=options)


def _register_loss(name: str, peer: Callable, described: str, measure: str, target: float) -> None:
    def set_up() -> Pair:
        import torch

        torch.set_num_threads(1)
        losses = Losses()
        found, right = losses.gradients(in_chunks), losses.gradients(peer)
        for got, wanted in zip(found, right, strict=True):
            assert (got - wanted).norm() < 1e-4 * wanted.norm(), "the two sides compute differently"
        run = getattr(losses, measure)
        return Pair(run(in_chunks), run(peer))

    set_up.__name__ = name
    benchmark(
        peer=described,
        work=f"{'peak memory of ' if measure == 'peak' else ''}loss and gradients of {TOKENS:,} "
        f"tokens, vocabulary of {VOCABULARY:,}, hidden size {HIDDEN_SIZE}, chunks of {CHUNK}",
        target=target,
        ranks=0,
        rounds=1 if measure == "peak" else 9,
        warm_up=1,
        unit="bytes" if measure == "peak" else "s",
    )(set_up)


for _loss in (
    ("chunked_cross_entropy", plain, "F.cross_entropy", "seconds", 1.0),
    ("chunked_cross_entropy_peak", plain, "F.cross_entropy", "peak", 0.15),
    (
        "chunked_cross_entropy_chunks",
        library_chunks,
        f"F.linear_cross_entropy with chunks of {CHUNK}",
        "seconds",
        1.15,
    ),
):
    _register_loss(*_loss)
