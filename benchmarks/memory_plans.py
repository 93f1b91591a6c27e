"""Lab 08's plan for half of the memory, and its offload to a file, against the usual ways.

Both sides train the same GPT on the same tokens, and their gradients are equal bit for bit. The
plan keeps some halves of the blocks and recomputes the others with the lab's `checkpoint`. If
everything is kept, a step needs the FLOPs of three forward passes. So a plan that recomputes 0.6 of
a forward pass should take 1.2 times as long, and recomputing everything should take 1.33 times.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch

WORK = "GPT with 4 blocks of 96, 4 × 128 tokens, one thread"
LARGE = "GPT with 6 blocks of 128, 8 × 128 tokens, one thread"


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("08_memory")


class Planned:
    """A GPT whose halves of blocks are kept or recomputed; `step()` runs forward and backward."""

    def __init__(self) -> None:
        import torch

        from parlab import models, segments, training

        torch.set_num_threads(1)
        torch.manual_seed(0)
        config = models.GPTConfig(sequence_length=128, hidden_size=96, layers=4)
        self.model = models.GPT(config)
        self.tokens, targets = training.text_batches(1, 4, 128)[0]
        self.functions = segments.of_gpt(self.model, targets)
        x = segments.embedded(self.model, self.tokens)
        self.profile = segments.measured(self.functions, x, self.model, lab()["checkpoint"])

    def plan(self, way: str) -> list[bool]:
        from parlab.costs.recomputation import peak_bytes

        if way != "plan":
            return [way == "kept"] * len(self.profile)
        budget = peak_bytes(self.profile, [True] * len(self.profile)) // 2
        return lab()["plan_recomputation"](self.profile, budget)

    def step(self, keep: list[bool]) -> None:
        from parlab import segments

        segments.zero_gradients(self.model)
        x = segments.embedded(self.model, self.tokens)
        segments.run(self.functions, keep, x, lab()["checkpoint"]).backward()

    def gradients(self, keep: list[bool]) -> "list[torch.Tensor]":
        self.step(keep)
        return [p.grad.clone() for p in self.model.parameters()]

    def peak(self, keep: list[bool]) -> int:
        """Return the peak memory of a step in bytes, including the parameters' gradients."""
        from parlab import memory

        for parameter in self.model.parameters():
            parameter.grad = None
        with memory.Peak() as peak:
            self.step(keep)
        return peak.bytes


def _register(way: str, kind: str, target: float | None) -> None:
    def set_up() -> Pair:
        import torch

        gpt = Planned()
        plan, other = gpt.plan("plan"), gpt.plan(way)
        same = map(torch.equal, gpt.gradients(plan), gpt.gradients(other))
        assert all(same), "the two plans have other gradients"
        measure: Callable[[list[bool]], Any] = gpt.peak if kind == "peak" else gpt.step
        return Pair(functools.partial(measure, plan), functools.partial(measure, other))

    set_up.__name__ = f"plan_{kind}_{way}"
    benchmark(
        peer=f"everything {way}",
        work=f"{'peak memory' if kind == 'peak' else 'time'} of a step with the best plan for half "
        f"of the activations, {WORK}",
        target=target,
        ranks=1,
        rounds=5 if kind == "peak" else 30,
        unit="bytes" if kind == "peak" else "s",
    )(set_up)


# Parameters and gradients take the same memory on both sides, so the ratio of the peaks is a little
# more than a half.
for _way, _kind, _target in (
    ("kept", "peak", 0.6),
    ("kept", "time", 1.3),
    ("recomputed", "time", 1.0),
    ("recomputed", "peak", None),
):
    _register(_way, _kind, _target)


class Offloaded:
    """A larger GPT, whose activations are moved to a file or kept in memory."""

    def __init__(self) -> None:
        import torch

        from parlab import activation_stores, models, training

        torch.set_num_threads(1)
        torch.manual_seed(0)
        config = models.GPTConfig(sequence_length=128, hidden_size=128, layers=6)
        self.model = models.GPT(config)
        self.tokens, self.targets = training.text_batches(1, 8, 128)[0]
        self.store = activation_stores.FileStore()

    def context(self, offload: bool) -> "AbstractContextManager[None]":
        if not offload:
            return nullcontext()
        return lab()["offload_activations"](self.model, self.store)

    def step(self, offload: bool) -> None:
        self.forward(offload).backward()

    def forward(self, offload: bool) -> "torch.Tensor":
        from parlab import training

        self.model.zero_grad()
        with self.context(offload):
            return training.token_loss(self.model(self.tokens), self.targets)

    def growth(self, offload: bool) -> int:
        """Return the number of bytes by which a forward pass makes the process grow, at least 1."""
        import torch

        from parlab import memory

        before = memory.process_bytes(torch.device("cpu"))
        loss = self.forward(offload)
        grown = memory.process_bytes(torch.device("cpu")) - before
        del loss
        return max(grown, 1)

    def gradients(self, offload: bool) -> "list[torch.Tensor]":
        self.step(offload)
        return [p.grad.clone() for p in self.model.parameters()]


def _register_offload(kind: str, target: float | None) -> None:
    def set_up() -> Pair:
        import torch

        gpt = Offloaded()
        same = map(torch.equal, gpt.gradients(offload=True), gpt.gradients(offload=False))
        assert all(same), "the two sides have other gradients"

        work: Callable[[bool], Any] = gpt.growth if kind == "memory" else gpt.step
        return Pair(functools.partial(work, True), functools.partial(work, False))

    set_up.__name__ = f"offload_{kind}"
    benchmark(
        peer="activations in memory",
        work=f"{'growth of the process' if kind == 'memory' else 'time of a step'}, activations in "
        f"a file, {LARGE}",
        target=target,
        ranks=1,
        rounds=10,
        unit="bytes" if kind == "memory" else "s",
    )(set_up)


_register_offload("memory", 0.2)
_register_offload("time", None)
