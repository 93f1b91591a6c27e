"""Exercise `sharded_master_weights`: one rank with all ranks' gradients is the reference."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, same
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
from parlab.checks.mixed_precision._weights import constructed
from parlab.ledger.ledger import ring_bytes_sent

CLOSE = 2e-6  # for float32 numbers, because norms and optimizers may add in another order
SLACK = 1.02  # for bytes
SECONDS = 10.0  # on a busy machine, the ranks may meet late

MISTAKES = Mistakes(
    **SKIPPING.texts,
    infinite_mean=(
        "after collect(), self.master.grad contains an infinity, but all gradients and their means "
        "are finite in {dtype}. Send that dtype, and divide before the sum"
    ),
    clipped_by_own_norm=(
        "each rank clips by the norm of its own shard, so the ranks scale by different factors. "
        "Use the norm of all shards"
    ),
    not_gathered=(
        "after step(), the model has the right weights only in this rank's own part. Gather the "
        "others' parts"
    ),
)

OPTIMIZERS: tuple[tuple[torch.dtype, MakeOptimizer], ...] = (
    (torch.float16, partial(torch.optim.SGD, lr=2.0**-3, momentum=0.5, weight_decay=2.0**-6)),
    (torch.bfloat16, partial(torch.optim.AdamW, lr=2.0**-12, weight_decay=2.0**-6)),
)


@check_of(MISTAKES)
def sharded_master_weights(check: Check) -> str:
    """Check steps, good and bad, clipped and not, on all ranks and fewer, and the memory."""
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
        own = serial.parts(serial.master)[trial.rank]
        trial.require(lambda: constructed(weights, {"self.master": weights.master}, [own]))
        for _, plan in trial.cases(PLANS):
            serial = _step(trial, weights, model, serial, scaler, plan)


def _step(
    trial: Trial,
    weights: Any,
    model: nn.Module,
    serial: Serial,
    scaler: RecordingScaler,
    plan: Plan,
) -> Serial:
    """Take one step, compare it, and return the reference after the step."""
    (factor, special), scale = plan, scaler.scale
    overflow = special in ("inf", "nan")
    gradients = drawn(trial, special, flat_of(model), scale)
    parts = gradients.split([p.numel() for p in trainable(model)], dim=1)
    missing = trial.draw.randrange(len(parts)) if special == "missing" else None
    if missing is not None:
        parts[missing].zero_()
    mean = (gradients.float() / scale).mean(0)
    norm = mean.norm().item()
    max_norm = factor * norm if 0 < norm < math.inf else 1.0
    for i, (parameter, part) in enumerate(zip(trainable(model), parts, strict=True)):
        parameter.grad = None if i == missing else part[trial.rank].view_as(parameter).clone()
    places = [p.data_ptr() for p in trainable(model)]
    before = weights and weights.master.detach().clone()
    scaler.forget()
    got = trial.run_function(
        *(collect_and_step, weights, model, scaler, max_norm),
        seconds=SECONDS,
        explain=waits_for_others if overflow else None,
    )
    now = weights and weights.master.detach().clone()
    shards = trial.gather(now)
    together = torch.cat(shards)[: len(mean)]
    changed = trial.gather(weights and not same(now, before))
    changed = changed[: -(-len(mean) // serial.width)]  # the other ranks have only zeros
    right = serial if overflow else serial.after(clipped(mean, max_norm))
    trial.require(
        lambda: collected(*got[:2], serial.parts(mean * scale)[trial.rank], overflow, serial.dtype),
        lambda: skipped_by_all(changed, bool(together.isfinite().all())) if overflow else None,
        lambda: None if overflow else stepped(together, right, serial, mean, max_norm),
        lambda: model_updated(model, together.to(serial.dtype), serial.width, trial.rank),
        lambda: left_as_it_was(weights, model, places),
        lambda: updated_once(scaler.calls, overflow),
        lambda: is_flag(got[2], not overflow, "step() returns"),
        lambda: held(bytes_held(weights, trainable(model)), right),
        lambda: sent(trial, 2 * serial.width * trial.size),
    )
    return right


def collect_and_step(
    weights: Any, model: nn.Module, scaler: RecordingScaler, max_norm: float
) -> tuple[bool, Tensor | None, Any]:
    """Return whether any parameter has a gradient left, self.master.grad, and step()'s result."""
    weights.collect()
    left = any(p.grad is not None for p in trainable(model))
    collected = None if weights.master.grad is None else weights.master.grad.clone()
    return left, collected, weights.step(scaler, max_norm)


def clipped(gradient: Tensor, max_norm: float) -> Tensor:
    return gradient * min(1.0, max_norm / max(gradient.norm().item(), 1e-30))


def collected(
    left: bool, got: Tensor | None, right: Tensor, overflow: bool, dtype: torch.dtype
) -> Finding | None:
    """Require this rank's part of the mean, still scaled, and no other gradient."""
    if left:
        return observed("a parameter has a gradient after collect(). Set it to None")
    if overflow:
        return None
    if got is not None and bool(got.isinf().any()):
        return MISTAKES.infinite_mean(dtype=dtype)
    return equal(got, right, "after collect(), self.master.grad", CLOSE)


def stepped(
    got: Tensor, right: Serial, serial: Serial, mean: Tensor, max_norm: float
) -> Finding | None:
    """Compare all master weights with the reference's."""
    by_part = torch.cat([clipped(part, max_norm) for part in mean.split(serial.width)])
    wrong = {"clipped_by_own_norm": serial.after(by_part).master.detach()}
    name = "in all shards together, the master weight"
    return explained(got, right.master.detach(), wrong, MISTAKES, name, CLOSE)


def model_updated(model: nn.Module, right: Tensor, width: int, rank: int) -> Finding | None:
    """Require that the model has the rounded copies."""
    got, own = flat_of(model), slice(rank * width, (rank + 1) * width)
    found = equal(got, right, "in the model, the weight")
    return MISTAKES.not_gathered() if found and same(got[own], right[own]) else found


def left_as_it_was(weights: Any, model: nn.Module, places: list[int]) -> Finding | None:
    """Require that weights are in the same memory, and that no gradient is left."""
    if [p.data_ptr() for p in trainable(model)] != places:
        return observed("after step(), the weights are not in self.flat any more. Gather in place")
    if weights.master.grad is not None:
        return observed("self.master.grad is not None after step()")
    return None


def bytes_held(weights: Any, parameters: list[nn.Parameter]) -> int:
    """Count all tensors in the attributes, the parameters, and the optimizer states."""
    found = [leaf for leaf in tree_leaves(vars(weights)) if isinstance(leaf, Tensor)]
    found += [t.grad for t in found if t.is_leaf and t.grad is not None]
    tensors = memory.tensor_bytes(t.detach() for t in [*found, *parameters])
    return tensors + memory.optimizer_bytes(weights.optimizer)


def held(got: int, right: Serial) -> Finding | None:
    """Require that only 16-bit weights and a shard of the rest are kept between steps."""
    states = memory.optimizer_bytes(right.optimizer) / right.ranks
    enough = 2 * right.width * right.ranks + 4 * right.width + states
    if got <= SLACK * enough + 64:
        return None
    return observed(
        f"after the step, this rank holds {got} bytes, expected {enough:.0f}: all 16-bit weights, "
        "and one shard of the master weights and optimizer states"
    )


def sent(trial: Trial, weights: int) -> Finding | None:
    """Require that 16-bit gradients and weights are sent once. `weights` is the bytes of either."""
    got = ring_bytes_sent(trial.calls[trial.rank])
    right = 2 * (trial.size - 1) / trial.size * weights
    if got <= right + 16 * trial.size:
        return None
    calls = ", ".join(f"{call.op} ({call.bytes} bytes)" for call in trial.calls[trial.rank])
    return observed(
        f"this rank sends {got:.0f} bytes (on a ring), expected {right:.0f}: 16-bit gradients and "
        f"weights once, and at most two numbers. The calls are {calls}"
    )
