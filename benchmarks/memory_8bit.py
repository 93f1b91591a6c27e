"""Lab 08's Adam on 8-bit states against bitsandbytes': time of a step, and bytes of the states.

Both quantize every tensor of a small GPT in blocks of 256, with the same maps. On the same random
gradients, at least 95 % of their codes are equal after 20 steps. The mean loss of the last 20 of
100 training steps is within 1 % of the mean loss with bitsandbytes and with float32 Adam. On the
CPU, bitsandbytes finds codes in a table of 65,536 entries, so it does not always take the nearest
level.
"""

import functools
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch
    from torch import nn

PEER = "bitsandbytes.optim.Adam8bit on the CPU"
WORK = "8-bit Adam for all tensors of the small GPT (120,576 parameters), blocks of 256"
SHARE_OF_CODES, STEPS = 0.95, 20
SAME_LOSS, TRAINED, LAST = 0.01, 100, 20


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("08_memory")


def our_adam(parameters: Any, lr: float) -> "torch.optim.Optimizer":
    """Return an optimizer that runs the lab's step."""
    import torch

    class Adam8bit(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:
            for p in self.param_groups[0]["params"]:
                lab()["adam_8bit_step"](p.view(-1), p.grad.view(-1), self.state[p], lr)

    return Adam8bit(parameters, {"lr": lr})


def model() -> "nn.Module":
    import torch

    from parlab import models

    torch.manual_seed(0)
    return models.GPT()


class Side:
    """A model, an optimizer, and random gradients that depend only on the step."""

    def __init__(self, make_optimizer: Any) -> None:
        import torch

        self.model = model()
        self.optimizer = make_optimizer(self.model.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(1)
        self.draw()

    def draw(self) -> None:
        import torch

        for p in self.model.parameters():
            p.grad = 0.01 * torch.randn(p.shape, generator=self.generator)

    def timed(self) -> None:
        self.optimizer.step()

    def held(self) -> int:
        from parlab import memory

        return memory.optimizer_bytes(self.optimizer)


def share_of_equal_codes(ours: Side, theirs: Side) -> float:
    from parlab.libraries.memory import codes

    equal = numbers = 0
    for p, q in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        state = ours.optimizer.state[p]
        for moment, library in zip("mv", codes(theirs.optimizer, q), strict=True):
            equal += int((state[moment][0] == library).sum())
            numbers += library.numel()
    return equal / numbers


def mean_loss(make_optimizer: Any) -> float:
    """Train the GPT on text. Return the mean loss of the last steps."""
    from parlab import training

    batches = training.text_batches(TRAINED, 8, 64)
    make = functools.partial(make_optimizer, lr=1e-3)
    losses = training.plain_losses(model(), make, batches, training.token_loss)
    return sum(losses[-LAST:]) / LAST


def sides() -> tuple[Side, Side]:
    """Return both sides after some steps, after which most of their codes must be equal."""
    from parlab.libraries.memory import adam_8bit

    ours, theirs = Side(our_adam), Side(adam_8bit)
    for _ in range(STEPS):
        for side in (ours, theirs):
            side.draw()
            side.timed()
    share = share_of_equal_codes(ours, theirs)
    assert share >= SHARE_OF_CODES, f"{share:.3f} of the codes are equal"
    return ours, theirs


@benchmark(peer=PEER, work=f"a step of {WORK}; same mean loss", target=None, ranks=0, calls=4)
def adam_8bit_time() -> Pair:
    import torch

    from parlab.libraries.memory import adam_8bit

    ours = mean_loss(our_adam)
    for other in (adam_8bit, torch.optim.Adam):
        loss = mean_loss(other)
        assert abs(ours / loss - 1) <= SAME_LOSS, f"mean losses of {ours:.4f} and {loss:.4f}"
    own, library = sides()
    return Pair(own.timed, library.timed)


@benchmark(
    peer=PEER, work=f"bytes of the states of {WORK}", target=1.0, ranks=0, rounds=3, unit="bytes"
)
def adam_8bit_states() -> Pair:
    own, library = sides()
    return Pair(own.held, library.held)
