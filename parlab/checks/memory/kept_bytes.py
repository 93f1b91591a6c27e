"""Exercise `kept_bytes`."""

import gc
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only
from parlab.memory import LiveStorages, tensor_bytes

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
        "{got} bytes of the forward pass are in memory, expected {right}, as without your hooks. A "
        "copy takes memory, and another tensor may then take the place of the original: return "
        "`tensor.detach()`"
    ),
    never_freed=(
        "{size} bytes of the forward pass are still in memory after `kept_bytes` has returned and "
        "the result is gone. If `pack` returns an operation's own output, this tensor and the "
        "graph refer to each other: return `tensor.detach()`"
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
    "indices and a mask": lambda net, x: (
        net.table(torch.arange(3)).masked_fill(torch.eye(3, 6) > 0, 0.0) * x[0, 0]
    ),
    "a buffer of the model": lambda net, x: net.wide(x) * net.scale,
    "float64": lambda net, x: net.wide(x).double().exp(),
}


Gradients = Sequence[Tensor]


@check_of(MISTAKES, ranks=1)
def kept_bytes(check: Check) -> str:
    """Compare the bytes with our own hooks. Then check the gradients and the memory."""
    with check.trial() as trial:
        for _, function in trial.cases(CASES):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(trial.draw.getrandbits(32))
                net, x = Net(), torch.randn(5, 4, 6, requires_grad=True)
            kept = kept_tensors(function, net, x)
            with LiveStorages() as plain:
                results = [function(net, x)]
            alive, right = plain.live, gradients(net, x, results.pop())

            def forward() -> Tensor:
                results.append(function(net, x))
                return results[-1]

            with LiveStorages() as live:
                got = trial.run(forward, net)
            calls, in_memory = len(results), live.live
            found = gradients(net, x, results[0]) if results else []
            results.clear()
            gc.collect()
            trial.require(
                lambda: has_type(got, int, "an int"),
                lambda: observed(f"it calls `forward` {calls} times") if calls != 1 else None,
                lambda: counted(got, kept, net),
                lambda: same_gradients(found, right),
                lambda: None if in_memory == alive else MISTAKES.copied(got=in_memory, right=alive),
                lambda: MISTAKES.never_freed(size=live.live) if live.live else None,
            )
    return "each storage counts once and as a whole, without parameters; nothing is left in memory"


def kept_tensors(function: Forward, net: Net, x: Tensor) -> list[Tensor]:
    """Return all tensors that autograd keeps."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.detach())
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(net, x)
    return kept


def counted(got: int, kept: list[Tensor], net: Net) -> Finding | None:
    """Compare the bytes. Name a mistake only if no other one counts the same number."""
    parameters = {p.untyped_storage() for p in net.parameters()}
    own = [tensor for tensor in kept if tensor.untyped_storage() not in parameters]
    right = tensor_bytes(own)
    if got == right:
        return None
    variants = {
        "parameters_counted": tensor_bytes(kept),
        "counted_again": sum(tensor.untyped_storage().nbytes() for tensor in own),
        "only_the_view": sum({t.untyped_storage(): t.nbytes for t in own}.values()),
    }
    named = the_only(
        MISTAKES, (key for key in variants if variants[key] == got), got=got, right=right
    )
    return named or observed(f"{got} bytes, expected {right}")


def gradients(net: Net, x: Tensor, result: Tensor) -> Gradients | Exception:
    """Return the gradients of all leaves, or the error that the backward pass raises."""
    leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
    # Retain the graph, because freeing it after the pass would hide that it refers to itself.
    options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    try:
        return torch.autograd.grad(result.square().sum(), leaves, **options)
    except Exception as error:
        return error


def same_gradients(got: Gradients | Exception, right: Gradients) -> Finding | None:
    """Compare the gradients that were computed with hooks with those without."""
    if isinstance(got, Exception):
        return MISTAKES.pass_changed(what=f"raises {type(got).__name__}: {got}")
    if all(map(torch.equal, got, right)):
        return None
    return MISTAKES.pass_changed(what="computes other gradients")
