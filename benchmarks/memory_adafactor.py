"""Lab 08's Adafactor against PyTorch's, in one process with one thread, with the same steps."""

import functools
from typing import Any

from benchmarks import Pair, benchmark


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("08_memory")


@benchmark(
    peer="torch.optim.Adafactor",
    work="a step of Adafactor for a GPT with 3.3 million parameters",
    target=1.0,
    ranks=0,
    rounds=30,
)
def adafactor_step() -> Pair:
    """Take the same steps on both sides, with epsilons for which both rules agree."""
    import torch

    from parlab.models import GPT, GPTConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = list(GPT(GPTConfig(hidden_size=256, layers=4)).parameters())
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    for own, other in zip(ours, theirs, strict=True):
        own.grad = torch.randn_like(own)
        other.grad = own.grad.clone()
    states: list[dict[str, Any]] = [{} for _ in ours]
    library = torch.optim.Adafactor(theirs, eps=(1e-16, 1e-3), weight_decay=0)
    step = lab()["adafactor_step"]

    @torch.no_grad()
    def own_step() -> None:
        for parameter, state in zip(ours, states, strict=True):
            step(parameter, parameter.grad, state)

    def library_step() -> None:
        library.step()

    for _ in range(10):
        own_step()
        library_step()
    for own, other in zip(ours, theirs, strict=True):
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-6), "the two sides step differently"
    return Pair(own_step, library_step)
