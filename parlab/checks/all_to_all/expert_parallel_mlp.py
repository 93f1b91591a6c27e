"""Exercise `expert_parallel_mlp`: the whole layer on each rank is the reference."""

import copy
import gc
import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type, same_states
from parlab.checks.base.draw import Draw
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

SECONDS = 10.0  # on a busy machine, the ranks may meet late

MISTAKES = Mistakes(
    kept_whole=(
        "experts of other ranks are still in memory after `__init__`. Keep no reference to them"
    ),
    mixed_up=(
        "`self.experts[{number}]` gets rows that are for another expert. After an exchange, the "
        "first index is the rank that has sent the rows, and the second one the expert. Transpose "
        "them before you flatten"
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
HIDDEN = 3


class Expert(nn.Module):
    """A small MLP with biases that records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(HIDDEN, 5), nn.Linear(5, HIDDEN)
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x.detach())
        return self.narrow(torch.tanh(self.wide(x)))


class Whole(nn.Module):
    """The layer with all experts, the same on all ranks."""

    def __init__(self, draw: Draw, n_experts: int, k: int, capacity: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(32))
            self.router = nn.Linear(HIDDEN, n_experts)
            self.experts = nn.ModuleList(Expert() for _ in range(n_experts))
            for p in self.router.parameters():
                nn.init.normal_(p)
        self.k, self.capacity = k, capacity
        self.double()

    def forward(self, x_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, the probabilities, and the experts for the tokens of one rank."""
        probabilities_TE, y_TH = self.router(x_TH).softmax(-1), torch.zeros_like(x_TH)
        experts_Tk = probabilities_TE.topk(self.k).indices
        slots_Tk = experts.slots(experts_Tk, self.capacity)
        for number, expert in enumerate(self.experts):
            rows = ((experts_Tk == number) & (slots_Tk >= 0)).any(1).nonzero().flatten()
            gates = probabilities_TE[rows, number].unsqueeze(1)
            y_TH = y_TH.index_add(0, rows, gates * expert(x_TH[rows]))
        return y_TH, probabilities_TE, experts_Tk


@check_of(MISTAKES)
def expert_parallel_mlp(check: Check) -> str:
    """Check experts, outputs, gradients, memory, calls, and refusals of uneven experts."""
    for trial in check.trials():
        for _, (own, k, capacity, tokens) in trial.cases(CASES):
            n_experts = trial.size * own
            layer = Whole(trial.draw, n_experts, min(k, n_experts), capacity)
            _case(trial, layer, [tokens[rank % 4] for rank in range(trial.size)])
        if trial.size > 1:
            layer = Whole(trial.draw, 2 * trial.size + 1, 1, 2)
            require_refusal(
                trial,
                lambda: _made(trial, layer),
                what=f"{len(layer.experts)} experts on {trial.size} ranks",
                names=str(len(layer.experts)),
                seconds=SECONDS,
            )
    return (
        "the outputs and gradients of the whole layer, with two all-to-alls in each pass; own "
        f"experts only in memory, on 1 to {check.world_size} ranks"
    )


def _case(trial: Trial, layer: Whole, n_tokens: list[int]) -> None:
    module, kept_whole = trial.run_function(_made, trial, layer, seconds=SECONDS) or (None, False)
    trial.require(
        lambda: _has_own_experts(module, layer, trial),
        lambda: MISTAKES.kept_whole() if kept_whole else None,
    )

    rank, size = trial.rank, len(layer.experts) * layer.capacity * HIDDEN * 8
    tokens, gradients = (
        [experts.random(trial.draw, count, HIDDEN) for count in n_tokens] for _ in range(2)
    )
    x_TH, leaves = tokens[rank].clone().requires_grad_(), [x.requires_grad_() for x in tokens]
    right, *last = _passes(layer, leaves, gradients, rank)
    output = trial.run_function(lambda: module(x_TH.view_as(x_TH)), seconds=SECONDS)
    trial.require(
        lambda: unchanged("`x_TH`", x_TH, tokens[rank]),
        lambda: _mixed_up(module, layer, rank),
        lambda: equal(output, right, "the output", TOLERANCE),
        lambda: experts.all_to_alls(MISTAKES, "forward", trial, 2, size),
        lambda: _called_once(module, trial.size * layer.capacity),
        lambda: _last_is(module, *last),
    )
    trial.run_function(
        lambda: _loss(output, module.last[0], gradients[rank]).backward(), seconds=SECONDS
    )
    trial.require(
        lambda: _gradients_are(module, layer, rank),
        lambda: experts.gradient_is("x_TH", x_TH, leaves[rank].grad, TOLERANCE),
        lambda: experts.all_to_alls(MISTAKES, "backward", trial, 2, size),
    )
    other = experts.random(trial.draw, 4, HIDDEN)
    trial.add("in a second forward pass, after `eval()`")
    trial.run_function(lambda: module.eval()(other), seconds=SECONDS)
    trial.require(lambda: _last_is(module, *(x.detach() for x in layer(other)[1:])))


def _passes(
    layer: Whole, tokens: list[Tensor], gradients: list[Tensor], rank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run both passes for the tokens of all ranks. Return the results for the tokens of one rank.

    The router gets gradients only from the tokens of this rank.
    """
    results = [layer(x) for x in tokens]
    losses = [_loss(y, p, pull) for (y, p, _), pull in zip(results, gradients, strict=True)]
    router = list(layer.router.parameters())
    of_router = torch.autograd.grad(losses[rank], router, retain_graph=True)
    sum(losses).backward()
    for p, gradient in zip(router, of_router, strict=True):
        p.grad = gradient
    output, probabilities_TE, experts_Tk = results[rank]
    return output.detach(), probabilities_TE.detach(), experts_Tk


def _loss(output: Tensor, probabilities_TE: Tensor, gradient: Tensor) -> Tensor:
    return (output * gradient).sum() + probabilities_TE.square().sum()


def _gradients_are(module: Any, layer: Whole, rank: int) -> Finding | None:
    first = rank * len(module.experts)
    pairs = [("router", module.router, layer.router)]
    for number, expert in enumerate(module.experts):
        pairs.append((f"experts[{number}]", expert, layer.experts[first + number]))
    for name, got, right in pairs:
        for key, p in right.named_parameters():
            of = got.get_parameter(key)
            if found := experts.gradient_is(f"{name}.{key}", of, p.grad, TOLERANCE):
                return found
    return None


def _made(trial: Trial, layer: Whole) -> tuple[Any, bool]:
    """Make the learner's layer. Return it, and whether experts of other ranks are still alive."""
    router, every = copy.deepcopy((layer.router, list(layer.experts)))
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
        gc.collect()
    return module, any(ref() is not None for ref in others)


def _has_own_experts(module: Any, layer: Whole, trial: Trial) -> Finding | None:
    if found := has_type(module.experts, nn.ModuleList, "an nn.ModuleList", "`self.experts`"):
        return found
    own = len(layer.experts) // trial.size
    if len(module.experts) != own:
        return observed(f"`self.experts` has {len(module.experts)} experts, expected {own}")
    for number, got in enumerate(module.experts):
        right = trial.rank * own + number
        if not same_states(got.state_dict(), layer.experts[right].state_dict(), 0.0):
            return observed(f"`self.experts[{number}]` of this rank must be expert {right}")
    return None


def _mixed_up(module: Any, layer: Whole, rank: int) -> Finding | None:
    """Look for tokens that an expert gets but the router sends to other experts."""
    tokens = [torch.cat(expert.inputs) for expert in layer.experts]
    for number, expert in enumerate(module.experts):
        rows = torch.cat([x.flatten(0, -2) for x in expert.inputs] or [tokens[0][:0]])
        right = tokens[rank * len(module.experts) + number]
        if (_are_in(rows, torch.cat(tokens)) & ~_are_in(rows, right)).any():
            return MISTAKES.mixed_up(number=number)
    return None


def _are_in(rows: Tensor, others: Tensor) -> Tensor:
    return (rows[:, None] == others).all(-1).any(-1)


def _called_once(module: Any, rows: int) -> Finding | None:
    for expert in module.experts:
        got = [math.prod(x.shape[:-1]) for x in expert.inputs]
        if got != [rows]:
            return observed(
                f"an expert is called {len(got)} times in a forward pass, with {sum(got)} rows in "
                f"total, expected once, with all N · C = {rows} rows"
            )
    return None


def _last_is(module: Any, probabilities_TE: Tensor, experts_Tk: Tensor) -> Finding | None:
    last = getattr(module, "last", None)
    if not isinstance(last, tuple | list) or len(last) != 2:
        return observed("`self.last` is not a pair of probabilities and experts")
    if found := equal(last[0], probabilities_TE, "`self.last[0]`", TOLERANCE):
        return found
    if not last[0].requires_grad:
        return observed(
            "`self.last[0]` is no part of autograd's graph, so a loss from it cannot teach the "
            "router"
        )
    return equal(last[1], experts_Tk, "`self.last[1]`")
