"""Training steps with segments that a checkpoint may call again, and what they observe."""

import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor

Around = Callable[..., Any]  # calls a segment: `around(segment, *args, **kwargs)`
Leaves = Mapping[str, Tensor]
INNER = "the inner function"  # of a checkpoint in a checkpoint


class Watch:
    """Records what segments observe in each call.

    Attributes:
        calls: by the segment's name, the first random number of each call.
        alive: for each call, how many tensors of earlier calls were in memory.
        uses_library: whether torch.utils.checkpoint has called a segment.
        no_tuple: the type of the result of a segment that returns a tuple, if it is no tuple.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = {}
        self.alive: list[int] = []
        self.uses_library = False
        self.no_tuple = ""
        self._storages: list[weakref.ref[torch.UntypedStorage]] = []

    def segment(self, function: Callable[..., Any], name: str = "the function") -> Callable:
        """Return a function that draws a random number and then calls `function`."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.alive.append(self.in_memory())
            self.calls.setdefault(name, []).append(torch.rand(()).item())
            self.uses_library |= _called_by_library()
            return function(*args, **kwargs)

        return watched

    def inside(self, tensor: Tensor) -> Tensor:
        """Remember a tensor that a segment computes but does not return."""
        self._storages.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    def in_memory(self) -> int:
        """Return how many of these tensors are in memory now."""
        return sum(storage() is not None for storage in self._storages)


def _called_by_library() -> bool:
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    return torch.utils.checkpoint.__file__ in files


Step = Callable[[Leaves, Watch, Around], Tensor]  # computes the loss


def dropout(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    segment = watch.segment(lambda x: F.dropout(torch.tanh(x @ leaves["weight"]), 0.4))
    return F.dropout(around(segment, leaves["x"]), 0.5).square().sum()


def two_in_a_row(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    first = watch.segment(lambda x: x.sin() * leaves["weight"][0], "the first function")
    second = watch.segment(lambda x: x.cos() @ leaves["weight"], "the second function")
    return around(second, around(first, leaves["x"])).exp().sum()


def several_outputs(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    def outputs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sin() * y, x.argmax(-1), y.exp(), y.detach().exp(), x * y.cos()

    x, y = leaves["x"], leaves["x"].flip(0).sin()
    first, index, _, constant, last = around(watch.segment(outputs), x, y)
    return first[index % len(first)].square().sum() + (constant + last).exp().sum()


def keywords(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    def function(
        x: Tensor, power: int, *, scale: Tensor, names: list[str], shift: None
    ) -> tuple[Tensor]:
        return (x**power * scale * len(names),)

    scale = leaves["weight"][0].exp()
    options = {"scale": scale, "names": ["a", "b"], "shift": None}
    outputs = around(watch.segment(function), leaves["x"], 3, **options)
    if not isinstance(outputs, tuple):
        watch.no_tuple, outputs = type(outputs).__name__, (outputs,)
    return (outputs[0] * scale).sum()


def only_parameters(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    def function(tokens: Tensor, mask: Tensor) -> Tensor:
        return F.embedding(tokens, leaves["weight"]) * mask

    tokens, mask = torch.tensor([2, 0, 1, 2]), torch.tensor([[True], [False], [True], [True]])
    return around(watch.segment(function), tokens, mask).exp().sum()


def some_need_no_gradient(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    def function(frozen: Tensor, tokens: Tensor, x: Tensor) -> Tensor:
        return frozen[tokens] * x.sin()

    return around(watch.segment(function), leaves["frozen"], torch.arange(10), leaves["x"]).sum()


def nested(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    inner = watch.segment(lambda x: F.dropout(x.sin() @ leaves["weight"], 0.5), INNER)

    def outer(x: Tensor) -> Tensor:
        return F.dropout(around(inner, around(inner, x.exp())).cos(), 0.5)

    return around(watch.segment(outer), leaves["x"]).square().sum()


def without_gradients(leaves: Leaves, watch: Watch, around: Around) -> Tensor:
    with torch.no_grad():
        y = around(watch.segment(torch.sin), leaves["x"])
    return y.sum()


STEPS: dict[str, Step] = {
    "dropout, and a weight that is no argument": dropout,
    "two segments in a row": two_in_a_row,
    "several outputs": several_outputs,
    "keywords, arguments that are no tensors, and a tuple with one output": keywords,
    "no argument needs a gradient": only_parameters,
    "some arguments need no gradient": some_need_no_gradient,
    "a checkpoint in a checkpoint": nested,
    "inside torch.no_grad()": without_gradients,
}


@dataclass
class Run:
    """One training step."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    next_random: Tensor  # what the generator draws after the step
    watch: Watch


def drawn(draw: Random) -> tuple[Leaves, int]:
    """Draw leaves, and a seed for the step's dropout."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    leaves = {
        "x": torch.randn(10, 6, generator=generator).requires_grad_(),
        "weight": torch.randn(6, 6, generator=generator).requires_grad_(),
        "frozen": torch.randn(10, 6, generator=generator),
    }
    return leaves, draw.getrandbits(32)


def run(step: Step, leaves: Leaves, seed: int, around: Around) -> Run:
    """Take a step from a seed. Restore the global generator afterward."""
    copies = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    for name, copy in copies.items():
        copy.requires_grad_(leaves[name].requires_grad)
    watch = Watch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loss = step(copies, watch, around)
        if loss.requires_grad:
            loss.backward()
        gradients = {name: copy.grad for name, copy in copies.items()}
        return Run(loss.detach(), gradients, torch.rand(3), watch)


def plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
