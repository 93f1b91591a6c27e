"""Exercise `kept_bytes`."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.memory import tensor_bytes

MISTAKES = Mistakes(
    parameters_counted=(
        "{got} bytes, expected {right}: parameters of the model, or views of them, are counted. "
        "Compare storages, because a product keeps a view of its weight, such as the transposed one"
    ),
    counted_again=(
        "{got} bytes, expected {right}: a storage is counted each time that a tensor in it is "
        "kept. Count it once, whichever part of it the tensor shows"
    ),
    only_the_view=(
        "{got} bytes, expected {right}: this counts the numbers that a view shows. A view keeps "
        "the whole storage in memory: use `untyped_storage().nbytes()`"
    ),
    pass_changed=(
        "the backward pass of the result of `forward` {what}. `unpack` must return the tensor that "
        "`pack` got"
    ),
    copied=(
        "autograd keeps copies instead of the tensors themselves. Copies take memory, and another "
        "tensor may then take the place of the original: return `tensor.detach()`"
    ),
    never_freed=(
        "{size} bytes of the forward pass are still in memory after `kept_bytes` has returned and "
        "the result is gone. If `pack` returns the tensor itself, an output that its operation "
        "keeps and the graph refer to each other: return `tensor.detach()`"
    ),
)


class Net(nn.Module):
    """A layer from 6 to 12 numbers, one back, a table, a frozen layer, a matrix, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(6, 12), nn.Linear(12, 6)
        self.table = nn.Embedding(9, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.ParameterList([torch.randn(3, 6)])
        self.register_buffer("scale", torch.rand(12))


Forward = Callable[[Net, Tensor], Tensor]
CASES: dict[str, Forward] = {  # from x (5, 4, 6) to a result
    "two layers and a tanh": lambda net, x: net.narrow(net.wide(x[0]).tanh()),
    "views of one storage": lambda net, x: torch.stack(
        [a * b for a, b in zip(*(net.wide(x).chunk(4, -1)[i : i + 2] for i in (0, 2)), strict=True)]
    ),
    "a small view of a large tensor": lambda net, x: net.wide(x)[1:2].square(),
    "a tensor that is kept twice": lambda net, x: (
        F.linear(x.softmax(-1), net.wide.weight) @ (net.wide.weight)
    ),
    "a view of a parameter": lambda net, x: net.wide(x)[..., 6:] * net.last[0][2:3],
    "a frozen layer": lambda net, x: net.frozen(net.narrow(net.wide(x).relu())),
    "indices and a mask": lambda net, x: F.dropout(net.table(torch.arange(3)), 0.5).masked_fill(
        torch.eye(3, 6, dtype=torch.bool), 0.0
    ),
    "a buffer of the model": lambda net, x: net.wide(x) * net.scale,
    "float64": lambda net, x: net.wide(x).double().exp(),
}


@check_of(MISTAKES, ranks=1)
def kept_bytes(check: Check) -> str:
    """Compare bytes with those of our own hooks; then the gradients, and what is left."""
    with check.trial() as trial:
        for _, function in trial.cases(CASES):
            net, x = drawn(trial)
            own, everything = kept_tensors(function, net, x)
            right = gradients(net, x, seeded(function, net, x))
            results: list[Tensor] = []

            def forward() -> Tensor:
                results.append(seeded(function, net, x))
                return results[-1]

            got = trial.run(forward, net)
            trial.require(
                lambda: has_type(got, int, "an int"),
                lambda: called_once(len(results)),
                lambda: counted(got, own, everything),
                lambda: same_gradients(net, x, results[0], right),
            )
        trial.add("inside torch.no_grad()")
        got = trial.run(lambda: torch.no_grad()(CASES["float64"])(net, x), net)
        trial.require(lambda: None if got == 0 else observed(f"{got} bytes, expected 0"))
        trial.situation = "a softmax of a layer's output"
        shared, left = trial.run_function(left_over, check.function, net, x)
        trial.require(
            lambda: None if shared else MISTAKES.copied(),
            lambda: MISTAKES.never_freed(size=left) if left else None,
        )
    return "each storage counts once and as a whole, without parameters; nothing is left in memory"


def drawn(trial: Trial) -> tuple[Net, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.draw.getrandbits(32))
        return Net(), torch.randn(5, 4, 6, requires_grad=True)


def kept_tensors(function: Forward, net: Net, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that autograd keeps: those that share no parameter's storage, and all."""
    parameters = {place(p) for p in net.parameters()}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.detach())
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        seeded(function, net, x)
    return [tensor for tensor in kept if place(tensor) not in parameters], kept


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def counted(got: int, own: list[Tensor], everything: list[Tensor]) -> Finding | None:
    """Name a mistake only if no other one counts the same number."""
    right = tensor_bytes(own)
    if got == right:
        return None
    variants = {
        "parameters_counted": tensor_bytes(everything),
        "counted_again": sum(tensor.untyped_storage().nbytes() for tensor in own),
        "only_the_view": sum({place(tensor): tensor.nbytes for tensor in own}.values()),
    }
    named = [mistake for mistake, value in variants.items() if value == got]
    if len(named) == 1:
        return getattr(MISTAKES, named[0])(got=got, right=right)
    return observed(f"{got} bytes, expected {right}")


def called_once(times: int) -> Finding | None:
    return observed(f"it calls `forward` {times} times, expected once") if times != 1 else None


def seeded(function: Forward, net: Net, x: Tensor) -> Tensor:
    """Call `function` with the same dropout masks each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function(net, x)


def gradients(net: Net, x: Tensor, result: Tensor) -> list[Tensor | None]:
    leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
    return list(torch.autograd.grad(result.square().sum(), leaves, allow_unused=True))


def same_gradients(
    net: Net, x: Tensor, result: Tensor, right: list[Tensor | None]
) -> Finding | None:
    """Compare the gradients of the pass that was watched with those without hooks."""
    try:
        found = gradients(net, x, result)
    except Exception as error:
        return MISTAKES.pass_changed(what=f"raises {type(error).__name__}: {error}")
    for got, wanted in zip(found, right, strict=True):
        if wanted is not None and (got is None or equal(got, wanted)):
            return MISTAKES.pass_changed(what="computes other gradients")
    return None


def left_over(function: Callable[..., Any], net: Net, x: Tensor) -> tuple[bool, int]:
    """Return whether the graph keeps a tensor itself; and bytes that nobody frees without it."""
    places: list[weakref.ref[torch.UntypedStorage]] = []
    results: list[Tensor] = []

    def forward() -> Tensor:
        results.append(net.wide(x).softmax(-1))
        places.append(weakref.ref(results[0].untyped_storage()))
        results[0] = results[0].sum()
        return results[0]

    function(forward, net)
    gc.collect(1)  # all generations take too long
    shared = places[0]() is not None
    results.clear()
    gc.collect(1)
    storage = places[0]()
    return shared, 0 if storage is None else storage.nbytes()
