"""Exercise `expert_parallel_mlp`: the whole layer on each rank is the reference."""

import copy
import gc
import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all import _serial_experts as _serial
from parlab.checks.all_to_all._experts import gradient_of
from parlab.checks.all_to_all._serial_experts import Layer, Right
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, equal_states, has_type, same, same_states
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial

SECONDS = 10.0  # a busy machine takes long to bring ranks together

MISTAKES = Mistakes(
    kept_whole=(
        "experts of other ranks are still in memory after `__init__`. Keep no reference to them"
    ),
    mixed_up=(
        "`self.experts[{number}]` gets rows that are for another expert. After an exchange, the "
        "first index is the rank that has sent the rows, and the second one the expert. Transpose "
        "them before you flatten"
    ),
    experts_averaged=(
        "the gradients of the experts are divided by the number of ranks. They are sums over the "
        "tokens of all ranks"
    ),
    router_summed=(
        "the gradient of the router is summed over the ranks. The layer itself leaves that to "
        "`average_gradients`"
    ),
    sends_more=(
        "the {which} pass makes the calls {got}, expected two all-to-alls of {right} bytes each"
    ),
)


CASES = {  # experts on each rank, k, capacity, tokens of rank r (at place r % 4)
    "two experts on each rank, uneven tokens": (2, 2, 3, (5, 7, 4, 6)),
    "one expert on each rank": (1, 1, 2, (5, 5, 5, 5)),
    "three experts on each rank, few tokens": (3, 2, 4, (3, 1, 2, 4)),
}


@check_of(MISTAKES)
def expert_parallel_mlp(check: Check) -> str:
    """Check own experts, outputs, gradients, memory, and calls; then a wrong number of experts."""
    for trial in check.trials():
        for _, case in trial.cases(CASES):
            _case(trial, *case)
        if trial.size > 1:
            n_experts = 2 * trial.size + 1
            layer = _serial.drawn(trial.draw, n_experts, 1, 2, 3)
            require_refusal(
                trial,
                lambda: _made(trial, layer),
                what=f"{n_experts} experts on {trial.size} ranks",
                names=str(n_experts),
                seconds=SECONDS,
            )
    return (
        "the outputs and gradients of the whole layer, with two all-to-alls in each pass; own "
        f"experts only in memory, on 1 to {check.world_size} ranks"
    )


def _case(
    trial: Trial, own: int, k: int, capacity: int, n_tokens: tuple[int, int, int, int]
) -> None:
    n, n_experts, hidden = trial.size, trial.size * own, 3
    layer = _serial.drawn(trial.draw, n_experts, min(k, n_experts), capacity, hidden)
    tokens, gradients = (
        [experts.random(trial.draw, n_tokens[rank % 4], hidden) for rank in range(n)]
        for _ in range(2)
    )
    right = _serial.passed(layer, tokens, gradients, trial.rank)
    module, kept_whole = trial.run_function(_made, trial, layer, seconds=SECONDS) or (None, False)
    trial.require(
        lambda: has_type(module, nn.Module, "an nn.Module", "the layer"),
        lambda: _has_own_experts(module, layer, trial),
        lambda: equal_states(
            module.router.state_dict(), layer.router.state_dict(), "{} of the router", 0.0
        ),
        lambda: MISTAKES.kept_whole() if kept_whole else None,
    )

    def two_all_to_alls(which: str) -> Finding | None:
        calls, size = trial.calls[trial.rank], n_experts * capacity * hidden * 8
        return experts.all_to_alls(MISTAKES, which, calls, 2, size) if n > 1 else None

    x_TH = tokens[trial.rank].clone().requires_grad_()
    output = trial.run_function(lambda: module(x_TH.view_as(x_TH)), seconds=SECONDS)
    trial.require(
        lambda: None if same(x_TH, tokens[trial.rank]) else COMMON.argument_changed(name="`x_TH`"),
        lambda: _output(module, output, right, trial.rank),
        lambda: two_all_to_alls("forward"),
        lambda: _called_once(module, n * capacity),
        lambda: _last_is(module, right),
    )

    def backward() -> None:
        ((output * gradients[trial.rank]).sum() + module.last[0].square().sum()).backward()

    trial.run_function(backward, seconds=SECONDS)
    trial.require(
        lambda: _gradients_are(module, x_TH, right, trial),
        lambda: two_all_to_alls("backward"),
    )
    other = experts.random(trial.draw, 4, hidden)
    trial.add("in a second forward pass")
    trial.run_function(lambda: module(other), seconds=SECONDS)
    probabilities = layer.probabilities(other).detach()
    trial.require(
        lambda: equal(module.last[0].detach(), probabilities, "`self.last[0]`", TOLERANCE)
    )


def _made(trial: Trial, layer: Layer) -> tuple[Any, bool]:
    """Make the learner's layer; return also whether experts of other ranks are still alive."""
    router, every = copy.deepcopy((layer.router, layer.experts))
    own = len(every) // trial.size
    others = [
        weakref.ref(p)
        for number, expert in enumerate(every)
        if number // own != trial.rank
        for p in expert.parameters()
    ]
    module = trial.check.function(router, every, layer.k, layer.capacity, trial.group)
    del router, every
    if any(ref() is not None for ref in others):
        gc.collect()  # slow, so only now
    return module, any(ref() is not None for ref in others)


def _has_own_experts(module: Any, layer: Layer, trial: Trial) -> Finding | None:
    if found := has_type(module.experts, nn.ModuleList, "an nn.ModuleList", "`self.experts`"):
        return found
    own = len(layer.experts) // trial.size
    if len(module.experts) != own:
        return observed(f"`self.experts` has {len(module.experts)} experts, expected {own}")
    first = trial.rank * own
    for number, got in enumerate(module.experts):
        right = layer.experts[first + number].state_dict()
        if not same_states(got.state_dict(), right, 0.0):
            return observed(
                f"`self.experts[{number}]` of this rank must be expert {first + number}"
            )
    return None


def _output(module: Any, output: Any, right: Right, rank: int) -> Finding | None:
    own = len(module.experts)
    got = output.detach() if isinstance(output, Tensor) else output
    if (found := equal(got, right.output, "the output", TOLERANCE)) is None:
        return None
    for number, expert in enumerate(module.experts):
        rows = torch.cat([x.flatten(0, -2) for x in expert.inputs] or [right.output[:0]])
        rows = rows[rows.any(-1)]  # of slots that are not empty
        is_own = (rows[:, None] == right.rows[rank * own + number]).all(-1).any(-1)
        if not is_own.all():
            return MISTAKES.mixed_up(number=number)
    return found


def _called_once(module: Any, rows: int) -> Finding | None:
    for expert in module.experts:
        got = [math.prod(x.shape[:-1]) for x in expert.inputs]
        if got != [rows]:
            return observed(
                f"an expert is called {len(got)} times in a forward pass, with {sum(got)} rows, "
                f"expected once, with all N · C = {rows} rows"
            )
    return None


def _last_is(module: Any, right: Right) -> Finding | None:
    last = getattr(module, "last", None)
    if not isinstance(last, tuple | list) or len(last) != 2:
        return observed("`self.last` is not a pair of probabilities and experts")
    if found := equal(last[0], right.last[0], "`self.last[0]`", TOLERANCE):
        return found
    if not last[0].requires_grad:
        return observed(
            "`self.last[0]` is no part of autograd's graph, so a loss from it cannot teach the "
            "router"
        )
    return equal(last[1], right.last[1], "`self.last[1]`")


def _gradients_are(module: Any, x_TH: Tensor, right: Right, trial: Trial) -> Finding | None:
    n, rank, own = trial.size, trial.rank, len(module.experts)
    got, wanted, wrong = {}, {}, []
    for number, expert in enumerate(module.experts):
        for name, gradient in right.experts[rank * own + number].items():
            key = gradient_of(f"experts[{number}].{name}")
            got[key], wanted[key] = expert.get_parameter(name).grad, gradient
            wrong.append((key, "experts_averaged", gradient / n))
    for name, gradient in right.router[rank].items():
        key = gradient_of(f"router.{name}")
        got[key], wanted[key] = module.router.get_parameter(name).grad, gradient
        wrong.append((key, "router_summed", sum(one[name] for one in right.router)))
    key = gradient_of("x_TH")
    got[key], wanted[key] = x_TH.grad, right.x
    return experts.gradients_are(got, wanted, MISTAKES, wrong)
