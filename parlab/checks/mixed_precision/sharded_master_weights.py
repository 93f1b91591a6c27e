"""Exercise `sharded_master_weights`: one rank with all ranks' gradients is the reference."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.trial import Trial
from parlab.checks.mixed_precision._scaler import (
    SKIPPING,
    RecordingScaler,
    is_flag,
    skipped_by_all,
    updated_once,
    waits_for_others,
)
from parlab.checks.mixed_precision._serial_training import (
    PLANS,
    SCALE,
    MakeOptimizer,
    Plan,
    Serial,
    awkward,
    drawn,
    flat_of,
    trainable,
)
from parlab.ledger.ledger import ring_bytes_sent

CLOSE = 2e-6  # of float32 numbers: norms and optimizers may add in another order
SLACK = 1.02  # of bytes
SECONDS = 10.0  # a busy machine takes long to bring ranks together

MISTAKES = Mistakes(
    **SKIPPING.texts,
    infinite_mean=(
        "after collect(), self.master.grad contains an infinity, but all gradients and their means "
        "are finite in {dtype}. Send that dtype, and divide before the sum"
    ),
    garbage_in_the_buffer=(
        "after collect(), self.master.grad contains NaN, but all gradients are finite. Set the "
        "buffer to zero at its end, and where a parameter has no gradient: use `torch.zeros_like`"
    ),
    clipped_by_own_norm=(
        "each rank clips by the norm of its own shard, so the ranks scale by different factors. "
        "Use the norm of all shards"
    ),
    rebuilt_each_step=(
        "self.master is rounded to 16 bits in each step, which loses what a step adds below the "
        "last bit. Make it once; only the model's weights are rounded"
    ),
    not_gathered=(
        "after step(), this rank's weights are new in its own part only. Gather the others' parts"
    ),
)

OPTIMIZERS: tuple[tuple[torch.dtype, MakeOptimizer], ...] = (
    (torch.float16, partial(torch.optim.SGD, lr=2.0**-3, momentum=0.5, weight_decay=2.0**-6)),
    (torch.bfloat16, partial(torch.optim.AdamW, lr=2.0**-12, weight_decay=2.0**-6)),
)


@check_of(MISTAKES)
def sharded_master_weights(check: Check) -> str:
    """Check steps, good and bad, clipped and not, on all ranks and fewer, and what is held."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0).step()  # imports modules
    for number, trial in enumerate(check.trials()):
        used = OPTIMIZERS if number == 0 else (OPTIMIZERS[number % 2],)
        cases = {str(dtype)[6:]: (awkward(trial, dtype), make) for dtype, make in used}
        if number == 0:
            with torch.random.fork_rng(devices=[]):
                cases["2 parameters"] = nn.Linear(1, 1).half(), OPTIMIZERS[0][1]
        for _, (model, make) in trial.cases(cases):
            _train(trial, model, make)
    return (
        f"the steps of one rank that sees everything, on 1 to {check.world_size} ranks; all skip "
        "or none; of master weights and states each holds a shard; 16 bits are sent"
    )


def _train(trial: Trial, model: nn.Module, make: MakeOptimizer) -> None:
    start = trial.gather(flat_of(model))[0]
    with filled_with_nan():
        weights = trial.run(model, make, trial.group, seconds=SECONDS)
        serial, scaler = Serial(start, make, trial.size), RecordingScaler(SCALE)
        trial.require(lambda: constructed(weights, serial.shards[trial.rank]))
        for _, plan in trial.cases(PLANS):
            serial = _step(trial, weights, model, serial, scaler, plan)


def constructed(weights: Any, right: Tensor) -> Finding | None:
    """Require a float32 copy of this rank's part, and an optimizer on it."""
    master = weights.master
    if found := has_type(master, nn.Parameter, "an nn.Parameter", "self.master"):
        return found
    if found := equal(master.detach(), right, "self.master"):
        return found
    held = [p for group in weights.optimizer.param_groups for p in group["params"]]
    if [id(p) for p in held] != [id(master)]:
        return observed("self.optimizer has parameters other than self.master")
    return None


@dataclass
class Step:
    """One step of the learner's object."""

    left: bool  # a gradient of a parameter, after collect()
    collected: Tensor | None  # self.master.grad, after collect()
    taken: Any
    kept: bool  # self.master.grad, after step()
    master: Tensor
    weights: Tensor
    in_place: bool
    held: int  # bytes


def taken(
    weights: Any,
    model: nn.Module,
    scaler: RecordingScaler,
    gradients: list[Tensor | None],
    max_norm: float,
) -> Step:
    """Collect and step."""
    parameters = trainable(model)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.view_as(parameter).clone()
    places = [p.data_ptr() for p in parameters]
    weights.collect()
    left = any(p.grad is not None for p in parameters)
    collected = None if weights.master.grad is None else weights.master.grad.clone()
    result = weights.step(scaler, max_norm)
    return Step(
        left,
        collected,
        result,
        weights.master.grad is not None,
        weights.master.detach().clone(),
        flat_of(model),
        places == [p.data_ptr() for p in parameters],
        bytes_held(weights, parameters),
    )


def _step(
    trial: Trial,
    weights: Any,
    model: nn.Module,
    serial: Serial,
    scaler: RecordingScaler,
    plan: Plan,
) -> Serial:
    """Take one step, compare it, and return the reference after the step."""
    ranks, scale, sizes = trial.size, scaler.scale, [p.numel() for p in trainable(model)]
    gradients = drawn(trial, plan, flat_of(model), scale)
    own: list[Tensor | None] = list(gradients[max(trial.rank, 0)].split(sizes))
    missing = trial.draw.randrange(len(sizes))
    if plan.one_missing:
        own[missing] = None
        for one in gradients:
            one.split(sizes)[missing].zero_()
    mean = (gradients.float() / scale).sum(0) / ranks
    norm = mean.norm().item()
    max_norm = plan.factor * norm if 0 < norm < math.inf else 1.0
    scaler.forget()
    step = trial.run_function(
        *(taken, weights, model, scaler, own, max_norm),
        seconds=SECONDS,
        explain=waits_for_others if plan.overflow else None,
    )
    shards = trial.gather(step.master if step else None)
    together = torch.cat(shards)[: len(mean)]
    used = -(-len(mean) // serial.width)  # ranks that have more than zeros
    changed = [not same(a, b) for a, b in zip(shards[:used], serial.shards, strict=False)]
    finite = bool(together.isfinite().all())
    right = serial if plan.overflow else serial.after(clipped(mean, max_norm))
    trial.require(
        lambda: collected(step, serial.parts(mean * scale, ranks)[trial.rank], plan, serial.dtype),
        lambda: skipped_by_all(changed, finite) if plan.overflow else None,
        lambda: None if plan.overflow else stepped(together, right, serial, mean, max_norm),
        lambda: model_updated(step, together, serial, trial.rank),
        lambda: updated_once(scaler.calls, plan.overflow),
        lambda: is_flag(step.taken, not plan.overflow, "step() returns"),
        lambda: held(step, right, ranks),
        lambda: sent(trial, 2 * serial.width * ranks),
    )
    right.shards = shards
    return right


def clipped(gradient: Tensor, max_norm: float) -> Tensor:
    return gradient * min(1.0, max_norm / max(gradient.norm().item(), 1e-30))


def collected(step: Step, right: Tensor, plan: Plan, dtype: torch.dtype) -> Finding | None:
    """Require this rank's part of the mean, still scaled, and no other gradient."""
    if step.left:
        return observed("a parameter has a gradient after collect(). Set it to None")
    if plan.overflow:
        return None
    got = step.collected
    if got is not None and bool(got.isinf().any()):
        return MISTAKES.infinite_mean(dtype=dtype)
    if got is not None and bool(got.isnan().any()):
        return MISTAKES.garbage_in_the_buffer()
    return equal(got, right, "after collect(), self.master.grad", CLOSE)


def stepped(
    got: Tensor, right: Serial, serial: Serial, mean: Tensor, max_norm: float
) -> Finding | None:
    """Compare all master weights with the reference's, and with those of mistakes."""
    wanted = right.master.detach()
    found = equal(got, wanted, "in all shards together, the master weight", CLOSE)
    if found is None:
        return None
    by_part = torch.cat([clipped(part, max_norm) for part in mean.split(serial.width)])
    for key, values in (
        ("rebuilt_each_step", serial.after(clipped(mean, max_norm), rounded=True).master),
        ("rebuilt_each_step", wanted.to(serial.dtype).float()),
        ("clipped_by_own_norm", serial.after(by_part).master),
    ):
        if same(got, values, CLOSE) and not same(values, wanted, 2 * CLOSE):
            return getattr(MISTAKES, key)()
    return found


def model_updated(step: Step, together: Tensor, serial: Serial, rank: int) -> Finding | None:
    """Require that the model has the rounded copies, in the same memory, and nothing is left."""
    right, width = together.to(serial.dtype), serial.width
    only_own = torch.cat(serial.shards)[: len(right)].to(serial.dtype)
    own = slice(rank * width, (rank + 1) * width)
    only_own[own] = right[own]
    if same(step.weights, only_own) and not same(only_own, right):
        return MISTAKES.not_gathered()
    if found := equal(step.weights, right, "in the model, the weight"):
        return found
    if not step.in_place:
        return observed("after step(), the weights are not in self.flat any more. Gather in place")
    return observed("self.master.grad is not None after step()") if step.kept else None


def bytes_held(weights: Any, parameters: list[nn.Parameter]) -> int:
    """Count all tensors in the attributes, the parameters, and the optimizer states."""
    found = [leaf for leaf in tree_leaves(vars(weights)) if isinstance(leaf, Tensor)]
    found += [t.grad for t in found if t.is_leaf and t.grad is not None]
    tensors = memory.tensor_bytes(t.detach() for t in [*found, *parameters])
    return tensors + memory.optimizer_bytes(weights.optimizer)


def held(step: Step, right: Serial, ranks: int) -> Finding | None:
    """Require that only 16-bit weights and a shard of the rest are kept between steps."""
    states = memory.optimizer_bytes(right.optimizer) / ranks
    enough = 2 * right.width * ranks + 4 * right.width + states
    if step.held <= SLACK * enough + 64:
        return None
    return observed(
        f"after the step, this rank holds {step.held} bytes, expected {enough:.0f}: all 16-bit "
        "weights, and one shard of the master weights and optimizer states"
    )


def sent(trial: Trial, weights: int) -> Finding | None:
    """Require that 16-bit gradients and weights travel once; `weights` are the bytes of all."""
    got = ring_bytes_sent(trial.calls[trial.rank])
    right = 2 * (trial.size - 1) / trial.size * weights
    if got <= right + 16 * trial.size:
        return None
    calls = ", ".join(f"{call.op} ({call.bytes} bytes)" for call in trial.calls[trial.rank])
    return observed(
        f"this rank sends {got:.0f} bytes (on a ring), expected {right:.0f}: 16-bit gradients and "
        f"weights once, and at most two numbers. The calls are {calls}"
    )
