"""Lab 08's ways to train in less memory against PyTorch's: time and peak memory.

With checkpoints, both sides train the same GPT from the same start, with the same seeds, and their
gradients are equal bit for bit. Its blocks end in dropout. Without a dropout at a block's end, the
library's hooks would stop before the last product, and do less work.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch

CHECKPOINTED = (
    "GPT with 8 blocks of 64 that end in dropout, each one checkpointed, 16 × 64 tokens, one thread"
)


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("08_memory")


class Checkpointed:
    """A GPT with `around` called on each block. `step()` runs forward and backward."""

    def __init__(self, around: Callable[..., Any]) -> None:
        import torch

        from parlab import models, training

        torch.manual_seed(0)
        self.around, self.model = around, models.GPT(models.GPTConfig(layers=8))
        self.tokens, self.targets = training.text_batches(1, 16, 64)[0]

    def step(self) -> None:
        import torch
        from torch.nn.functional import dropout

        from parlab import training

        torch.manual_seed(1)
        self.model.zero_grad()
        x = self.model.tokens(self.tokens) + self.model.positions.weight
        for block in self.model.blocks:
            x = self.around(lambda x, block=block: dropout(block(x), 0.1), x)
        scores = self.model.unembed(self.model.norm(x))
        training.token_loss(scores, self.targets).backward()

    def gradients(self) -> "list[torch.Tensor]":
        self.step()
        return [p.grad.clone() for p in self.model.parameters()]

    def peak(self) -> int:
        """Return the peak memory of a step in bytes, including its gradients."""
        from parlab import memory

        self.model.zero_grad()
        with memory.Peak() as peak:
            self.step()
        return peak.bytes


def _checkpoints(reentrant: bool) -> tuple[Checkpointed, Checkpointed]:
    """Return both sides, after comparing their gradients."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(1)
    ours = Checkpointed(lab()["checkpoint"])
    theirs = Checkpointed(functools.partial(checkpoint, use_reentrant=reentrant))
    same = map(torch.equal, ours.gradients(), theirs.gradients())
    assert all(same), "the two sides have other gradients"
    return ours, theirs


@benchmark(
    peer="torch.utils.checkpoint with use_reentrant=False",
    work=f"forward and backward pass, {CHECKPOINTED}",
    target=1.0,
    ranks=0,
    rounds=40,
)
def checkpoint_step() -> Pair:
    ours, theirs = _checkpoints(reentrant=False)
    return Pair(ours.step, theirs.step)


def _register_peak(name: str, reentrant: bool, target: float) -> None:
    def set_up() -> Pair:
        ours, theirs = _checkpoints(reentrant)
        return Pair(ours.peak, theirs.peak)

    set_up.__name__ = f"checkpoint_peak_{name}"
    benchmark(
        peer=f"torch.utils.checkpoint with use_reentrant={reentrant}",
        work=f"peak memory of a step, {CHECKPOINTED}",
        target=target,
        ranks=0,
        rounds=3,
        unit="bytes",
    )(set_up)


_register_peak("hooks", reentrant=False, target=1.05)
_register_peak("reentrant", reentrant=True, target=1.0)
