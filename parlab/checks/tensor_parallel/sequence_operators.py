"""Exercise `sequence_operators`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _passes as passes
from parlab.checks.tensor_parallel._layers import Share
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, Run, gradient_of, random
from parlab.costs.collectives import ring_bytes
from parlab.ledger.ledger import ring_bytes_sent

MISTAKES = Mistakes(
    not_summed="it comes from this rank's own tensor alone: add the tensors of all ranks",
    keeps_whole=(
        "{got}. Keep only the shard of the input ({right} bytes): save `x` and `weight` as they "
        "are, keep no whole tensor in `ctx`, and gather again in the backward pass"
    ),
    all_reduced=(
        "the {which} pass uses an all-reduce, which gives every rank the whole sequence: each rank "
        "needs its part only, and a reduce-scatter sends half as much"
    ),
)
CASES = {  # dtype, whether there is a bias, and the memory layout of x and gradients
    "float64 with bias": (torch.float64, True, "contiguous"),
    "float64 without bias": (torch.float64, False, "contiguous"),
    "float32 with bias": (torch.float32, True, "contiguous"),
    "float32 without bias": (torch.float32, False, "contiguous"),
    "transposed in memory": (torch.float64, True, "transposed in memory"),
    "expanded": (torch.float64, True, "expanded"),
}
PART = Share(1)


@check_of(MISTAKES)
def sequence_operators(check: Check) -> str:
    """Check values, gradients, calls, and kept bytes, and that uneven sequences are refused."""
    for trial in check.trials():
        for _, (dtype, bias, layout) in trial.cases(CASES):
            for _, one in trial.cases({"scatter": _scatter, "gather_linear": _gather_linear}):
                one(trial, dtype, layout, bias)
        uneven = 2 * trial.size + 1
        passes.refuses(
            trial,
            lambda trial=trial, n=uneven: check.function(trial.group)[1](torch.ones(2, n, 3)),
            f"{uneven} tokens",
            [uneven],
        )
    return (
        "values and gradients; only the shard is kept; gathers and reduce-scatters, and no "
        f"all-reduce, on 1 to {check.world_size} ranks"
    )


def _drawn(trial: Trial, layout: str, dtype: torch.dtype, *shape: int) -> list[Tensor]:
    """Return a tensor for each rank."""
    every = [random(trial.draw, *shape).to(dtype) for _ in range(trial.size)]
    return [passes.LAYOUTS[layout](x, rank) for rank, x in enumerate(every)]


def _scatter(trial: Trial, dtype: torch.dtype, layout: str, _: bool) -> None:
    n, r, part = trial.size, trial.rank, trial.draw.randrange(2, 4)
    every = _drawn(trial, layout, dtype, 2, n * part, 3)
    gradients, whole = _drawn(trial, layout, dtype, 2, part, 3), sum(every)
    right = {OUTPUT: PART.of(whole, r, n), gradient_of("x"): torch.cat(gradients, dim=1)}
    wrong = [(OUTPUT, "not_summed", PART.of(every[r], r, n))]
    got = _run(trial, 1, {"x": every[r]}, gradients[r])
    _require(trial, got, right, wrong, {"forward": whole.nbytes, "backward": whole.nbytes})


def _gather_linear(trial: Trial, dtype: torch.dtype, layout: str, bias: bool) -> None:
    n, r, part = trial.size, trial.rank, trial.draw.randrange(2, 4)
    outputs = trial.draw.randrange(2, 5)
    shards = _drawn(trial, layout, dtype, 2, part, 6)
    weights = _drawn(trial, "contiguous", dtype, outputs, 6)
    biases = _drawn(trial, "contiguous", dtype, outputs) if bias else n * [None]
    gradients = _drawn(trial, layout, dtype, 2, n * part, outputs)
    whole = torch.cat(shards, dim=1)
    every = [_serial(whole, *one) for one in zip(weights, biases, gradients, strict=True)]
    of_x = [one[gradient_of("x")] for one in every]
    right = {**every[r], gradient_of("x"): PART.of(sum(of_x), r, n)}
    wrong = [(gradient_of("x"), "not_summed", PART.of(of_x[r], r, n))]
    inputs = {"x": shards[r], "weight": weights[r], "bias": biases[r]}
    got = _run(trial, 0, inputs, gradients[r])
    _require(trial, got, right, wrong, {"forward": whole.nbytes, "backward": 2 * whole.nbytes})

    def kept() -> Finding | None:
        """Check the kept bytes. The weight does not count, and the bias may be kept."""
        size, shard = got.kept - biases[r].nbytes if bias else got.kept, shards[r].nbytes
        sent = ring_bytes_sent(got.calls["backward"])
        if n > 1 and size > 1.2 * shard:
            return MISTAKES.keeps_whole(got=f"{got.kept} bytes are kept", right=shard)
        if n > 1 and sent < 2 * ring_bytes("all_gather", n * shard, n) - 1:
            calls = passes.calls_text(got.calls["backward"])
            text = f"the backward pass sends {calls}, which does not gather the input again"
            return MISTAKES.keeps_whole(got=text, right=shard)
        return None

    trial.require(kept)


def _serial(x: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor) -> dict[str, Tensor]:
    """Return the output of a linear layer on one rank, and its gradients."""
    given = {"x": x, "weight": weight, "bias": bias}
    leaves = {n: t.detach().clone().requires_grad_() for n, t in given.items() if t is not None}
    output = F.linear(*leaves.values())
    output.backward(gradient)
    return {OUTPUT: output.detach(), **{gradient_of(n): t.grad for n, t in leaves.items()}}


def _run(trial: Trial, which: int, inputs: dict[str, Tensor | None], gradient: Tensor) -> Run:
    owner = nn.Module()
    if "weight" in inputs:
        owner.weight = nn.Parameter(inputs["weight"])  # in the same memory, which does not count

    def run() -> Run:
        return passes.run(trial, trial.check.function(trial.group)[which], inputs, gradient, owner)

    return trial.run_function(run, seconds=SECONDS)


def _require(
    trial: Trial,
    got: Run,
    right: dict[str, Tensor],
    wrong: list[passes.Variant],
    limits: dict[str, int],
) -> None:
    def calls() -> Finding | None:
        for which, limit in limits.items():
            if any(call.op == "all_reduce" for call in got.calls[which]):
                return MISTAKES.all_reduced(which=which)
            if passes.total(got.calls[which]) > limit:
                text = passes.calls_text(got.calls[which])
                return observed(f"the {which} pass sends {text}, but {limit} bytes are enough")
        return None

    tolerance = 1e-4 if right[OUTPUT].dtype is torch.float32 else 1e-9
    trial.require(
        lambda: passes.unchanged(got),
        lambda: passes.values_are(got.values, right, wrong, MISTAKES, tolerance),
        calls,
    )
