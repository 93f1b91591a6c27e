"""Exercise `expert_parallel_mlp`: the whole layer on each rank is the reference."""

import gc
import math
import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all import _serial_experts as _serial
from parlab.checks.all_to_all._experts import gradient_of
from parlab.checks.all_to_all._serial_experts import Layer, Right
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import (
    equal,
    equal_states,
    explained,
    has_type,
    same,
    same_states,
)
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial

SECONDS = 10.0  # a busy machine takes long to bring ranks together

MISTAKES = Mistakes(
    all_experts="`self.experts` has all {all} experts. Keep this rank's {own} only",
    strided=(
        "`self.experts` has every N-th expert. Rank r needs those from r·E/N to (r + 1)·E/N − 1"
    ),
    kept_whole=(
        "experts of other ranks are still in memory after `__init__`. Keep no reference to them"
    ),
    capacity_of_all_ranks=(
        "tokens are dropped as if the slots of an expert were for the tokens of all ranks. Each "
        "expert has `capacity` slots for the tokens of each rank"
    ),
    mixed_up=(
        "rows get to the wrong experts or tokens. After an exchange, the first index is the rank "
        "that has sent the rows, and the second one the expert. Transpose them before you flatten"
    ),
    not_sent_back=(
        "the outputs are combined from what this rank's experts have computed for all ranks. "
        "Exchange them back first"
    ),
    scores_in_last=("`self.last[0]` has the router's scores. Apply the softmax over the experts"),
    last_detached=(
        "`self.last[0]` is no part of autograd's graph, so a loss from it cannot teach the router"
    ),
    experts_without_gradient=(
        "this rank's experts get no gradient: an exchange is no part of autograd's graph"
    ),
    x_through_gates=(
        "the gradient comes through the gates only: the exchange of the tokens is no part of "
        "autograd's graph"
    ),
    experts_averaged=(
        "the gradients of the experts are divided by the number of ranks. They are sums over the "
        "tokens of all ranks"
    ),
    router_summed=(
        "the gradient of the router is summed over the ranks. The layer itself leaves that to "
        "`average_gradients`"
    ),
    called_often=(
        "an expert is called {times} times in a forward pass, expected once, with all {rows} rows"
    ),
    sends_more=(
        "the {which} pass makes the calls {got}, expected two all-to-alls of {right} bytes each"
    ),
    not_refused="it accepts {experts} experts on {ranks} ranks. Raise a ValueError",
)


@dataclass(frozen=True)
class Case:
    """A layer: experts on each rank, and sizes. Rank r has `tokens[r % 4]` tokens."""

    own: int
    k: int
    capacity: int
    tokens: tuple[int, int, int, int]


CASES = {
    "two experts on each rank, uneven tokens": Case(2, 2, 3, (5, 7, 4, 6)),
    "one expert on each rank": Case(1, 1, 2, (5, 5, 5, 5)),
    "three experts on each rank, few tokens": Case(3, 2, 4, (3, 1, 2, 4)),
}


@check_of(MISTAKES)
def expert_parallel_mlp(check: Check) -> str:
    """Check own experts, outputs, gradients, memory, and calls; then a wrong number of experts."""
    for trial in check.trials():
        for _, case in trial.cases(CASES):
            _case(trial, case)
        if trial.size > 1:
            _uneven(trial, 2 * trial.size + 1)
    return (
        "the outputs and gradients of the whole layer, with two all-to-alls in each pass; own "
        f"experts only in memory, on 1 to {check.world_size} ranks"
    )


def _uneven(trial: Trial, n_experts: int) -> None:
    """Require a ValueError for a number of experts that N does not divide."""
    layer = _serial.drawn(trial.draw, n_experts, 1, 2, 3)
    require_refusal(
        trial,
        lambda: _made(trial, layer),
        MISTAKES.not_refused(experts=n_experts, ranks=trial.size),
        what=f"{n_experts} experts",
        names=str(n_experts),
        seconds=SECONDS,
    )


def _case(trial: Trial, case: Case) -> None:
    n, hidden = trial.size, 3
    layer = _serial.drawn(
        trial.draw, n * case.own, min(case.k, n * case.own), case.capacity, hidden
    )
    tokens, gradients = (
        [experts.random(trial.draw, case.tokens[rank % 4], hidden) for rank in range(n)]
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
    x_TH = tokens[trial.rank].clone().requires_grad_()
    output = trial.run_function(lambda: module(x_TH.view_as(x_TH)), seconds=SECONDS)
    size = n * case.own * case.capacity * hidden * 8
    trial.require(
        lambda: None if same(x_TH, tokens[trial.rank]) else COMMON.argument_changed(name="`x_TH`"),
        lambda: explained(
            output.detach() if isinstance(output, Tensor) else output,
            right.output,
            _serial.wrong_outputs(layer, tokens, trial.rank),
            MISTAKES,
            "the output",
            TOLERANCE,
        ),
        lambda: _calls_are(trial, "forward", size),
        lambda: _called_once(module, n * case.capacity),
        lambda: _last_is(module, right, layer.router(x_TH.detach())),
    )

    def backward() -> None:
        ((output * gradients[trial.rank]).sum() + module.last[0].square().sum()).backward()

    trial.run_function(backward, seconds=SECONDS)
    trial.require(
        lambda: _gradients_are(module, x_TH, right, trial),
        lambda: _calls_are(trial, "backward", size),
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
    router, every = layer.copied()
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
    every, n, rank = layer.experts, trial.size, trial.rank
    own = len(every) // n
    if len(module.experts) != own:
        if len(module.experts) == len(every):
            return MISTAKES.all_experts(all=len(every), own=own)
        return observed(f"`self.experts` has {len(module.experts)} experts, expected {own}")

    def are(numbers: range) -> bool:
        return all(
            same_states(got.state_dict(), every[number].state_dict(), 0.0)
            for got, number in zip(module.experts, numbers, strict=True)
        )

    if are(range(rank * own, (rank + 1) * own)):
        return None
    if are(range(rank, len(every), n)):
        return MISTAKES.strided()
    return observed(
        f"`self.experts` of rank {rank} are not the experts {rank * own} to {(rank + 1) * own - 1}"
    )


def _calls_are(trial: Trial, which: str, size: int) -> Finding | None:
    calls = trial.calls[trial.rank]
    if trial.size == 1 or [(c.op, c.bytes) for c in calls] == 2 * [("all_to_all", size)]:
        return None
    got = ", ".join(f"{call.op} of {call.bytes} bytes" for call in calls) or "none"
    return MISTAKES.sends_more(which=which, got=got, right=size)


def _called_once(module: Any, rows: int) -> Finding | None:
    for expert in module.experts:
        if len(expert.shapes) != 1:
            return MISTAKES.called_often(times=len(expert.shapes), rows=rows)
        got = math.prod(expert.shapes[0][:-1])
        if got != rows:
            return observed(f"an expert gets {got} rows, expected N · C = {rows}")
    return None


def _last_is(module: Any, right: Right, scores_TE: Tensor) -> Finding | None:
    last = getattr(module, "last", None)
    if not isinstance(last, tuple | list) or len(last) != 2:
        return observed("`self.last` is not a pair of probabilities and experts")
    if found := equal(last[0], right.last[0], "`self.last[0]`", TOLERANCE):
        is_scores = isinstance(last[0], Tensor) and same(last[0], scores_TE, TOLERANCE)
        return MISTAKES.scores_in_last() if is_scores else found
    if not last[0].requires_grad:
        return MISTAKES.last_detached()
    return equal(last[1], right.last[1], "`self.last[1]`")


def _gradients_are(module: Any, x_TH: Tensor, right: Right, trial: Trial) -> Finding | None:
    n, rank, own = trial.size, trial.rank, len(module.experts)
    got, wanted, wrong = {}, {}, []
    for number, expert in enumerate(module.experts):
        for name, gradient in right.experts[rank * own + number].items():
            key = gradient_of(f"experts[{number}].{name}")
            got[key], wanted[key] = expert.get_parameter(name).grad, gradient
            wrong.append((key, "experts_averaged", gradient / n))
    if all(gradient is None for gradient in got.values()):
        return MISTAKES.experts_without_gradient()
    for name, gradient in right.router[rank].items():
        key = gradient_of(f"router.{name}")
        got[key], wanted[key] = module.router.get_parameter(name).grad, gradient
        wrong.append((key, "router_summed", sum(one[name] for one in right.router)))
    key = gradient_of("x_TH")
    got[key], wanted[key] = x_TH.grad, right.x
    wrong.append((key, "x_through_gates", right.x_through_gates))
    return experts.values_are(got, wanted, wrong, MISTAKES)
