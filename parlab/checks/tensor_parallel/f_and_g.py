"""Exercise `f_and_g`."""

import torch
from mpi4py import MPI
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import same
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _passes as passes
from parlab.checks.tensor_parallel._layers import texts
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, Run, gradient_of, random
from parlab.ledger import Ledger

MISTAKES = Mistakes(
    not_summed="this is this rank's own tensor alone: add the tensors of all ranks",
    sums_again=(
        "{name} sends {got} in the {which} pass: all ranks have the same tensor there already, so "
        "send nothing"
    ),
    memory_order=(
        "{name} sends a tensor whose memory is not in the order of its indices. Gloo adds numbers "
        "in the order of memory, which may differ between ranks, and NCCL refuses such a tensor. "
        "Send a contiguous copy"
    ),
    overwritten=(
        "g's result changes at the next call: it belongs to the caller, so use new memory in each "
        "call"
    ),
    **texts("sends_more"),
)
OF_ANOTHER_GROUP = observed(
    "after a call of f for another group, the backward pass of f sums over the ranks of that "
    "group. Store the group in `ctx`, which each call has for itself"
)
FROZEN = "g does not return the sum for a tensor that needs no gradient, as in evaluation"
CASES = {
    "two dimensions": ((3, 5), torch.float64, "contiguous"),
    "float32": ((7,), torch.float32, "contiguous"),
    "no dimensions": ((), torch.float64, "contiguous"),
    "transposed": ((4, 3, 2), torch.float64, "transposed in memory"),
    "transposed on odd ranks": ((4, 3), torch.float64, "transposed in memory on odd ranks"),
    "expanded": ((3, 4), torch.float64, "expanded"),
}


@check_of(MISTAKES)
def f_and_g(check: Check) -> str:
    """Check values, gradients, and calls of f and g."""
    for trial in check.trials():
        for _, (shape, dtype, layout) in trial.cases(CASES):
            shared, *parts = (random(trial.draw, *shape).to(dtype) for _ in range(trial.size + 1))
            shared = passes.LAYOUTS[layout](shared, trial.rank)
            parts = [passes.LAYOUTS[layout](part, rank) for rank, part in enumerate(parts)]
            for name, number in trial.cases({"f": 0, "g": 1}):
                _one(trial, name, number, shared, parts)
        both = trial.run_function(_twice, trial, random(trial.draw, 3), seconds=SECONDS)
        trial.require(lambda: None if same(*both) else MISTAKES.overwritten())
        part = random(trial.draw, 3) * (trial.rank + 1)
        total = sum(trial.gather(part))
        frozen = trial.run_function(lambda: trial.check.function(trial.group)[1](part))
        trial.require(lambda: None if same(frozen, total, 1e-12) else observed(FROZEN))
        summed = trial.run_function(_with_another_group, trial, random(trial.draw, 3))
        all_ranks = torch.full((3,), trial.size)
        trial.require(lambda: None if same(summed, all_ranks) else OF_ANOTHER_GROUP)
    return (
        "values and gradients, for tensors in any order of memory, on 1 to "
        f"{check.world_size} ranks; f sends in the backward pass alone, g in the forward pass"
    )


def _one(trial: Trial, name: str, number: int, shared: Tensor, parts: list[Tensor]) -> None:
    """Check f, which adds up gradients, or g, which adds up tensors."""
    n, own, total = trial.size, parts[trial.rank], torch.stack(parts).sum(0)
    silent, sending = ("forward", "backward") if name == "f" else ("backward", "forward")
    x, gradient = (shared, own) if name == "f" else (own, shared)
    values = {"forward": OUTPUT, "backward": gradient_of("x")}
    right = {values[silent]: shared, values[sending]: total}
    wrong = [(values[sending], "not_summed", own)]

    def run() -> Run:
        function = trial.check.function(trial.group)[number]
        return passes.run(trial, function, {"x": x}, gradient, nn.Module())

    got = trial.run_function(run, seconds=SECONDS)

    def sends() -> Finding | None:
        if sent := got.calls[silent]:
            return MISTAKES.sums_again(name=name, got=passes.calls_text(sent), which=silent)
        return None if got.contiguous else MISTAKES.memory_order(name=name)

    tolerance = 1e-5 if x.dtype is torch.float32 else 1e-12
    trial.require(
        lambda: passes.unchanged(got),
        sends,
        lambda: passes.values_are(got.values, right, wrong, MISTAKES, tolerance),
        lambda: passes.sends_more(got, sending, total.nbytes, n),
    )


def _twice(trial: Trial, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return g's result after another call, and a copy from before that call."""
    _, g = trial.check.function(trial.group)
    got = g(x)
    before = got.clone()
    g(x + 1)
    return got, before


def _with_another_group(trial: Trial, x: Tensor) -> Tensor:
    """Return the gradient through f after a call of f for a group of only this rank."""
    f, _ = trial.check.function(trial.group)
    copied = f(x.requires_grad_())
    alone = RecordingGroup(MPI.COMM_SELF, [0], Ledger())
    try:
        f_alone, g_alone = trial.check.function(alone)
        g_alone(f_alone(x.detach().clone().requires_grad_()))
    finally:
        alone.close()
    copied.sum().backward()
    return x.grad
