"""Run a learner's function forward and backward, and check what it computes, sends, and refuses."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab import memory
from parlab.checks.base.compare import explained, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.refusals import numbers_in, require_refusal
from parlab.checks.base.trial import Trial
from parlab.costs.collectives import ring_bytes
from parlab.ledger import Call
from parlab.ledger.ledger import ring_bytes_sent

# A check's passes need milliseconds, but on a busy machine, the ranks may meet late.
SECONDS = 10.0
OUTPUT = "the output"

MISTAKES = Mistakes(
    sends_more="{which} sends {got}, but {enough}",
)


def gradient_of(name: str) -> str:
    return f"the gradient of {name}"


def random(draw: Random, *shape: int) -> Tensor:
    """Return normal numbers in float64, the same on all ranks."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)


# Layouts of a tensor in a rank's memory. Only "expanded" changes the numbers.
LAYOUTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "contiguous": lambda x, rank: x.clone(),
    "transposed in memory": lambda x, rank: _transposed(x),
    "transposed in memory on odd ranks": lambda x, rank: _transposed(x) if rank % 2 else x.clone(),
    "expanded": lambda x, rank: x[:1].clone().expand_as(x),
}


@dataclass
class Run:
    """A forward and a backward pass on this rank.

    Attributes:
        values: OUTPUT, and the gradients of inputs and parameters, by `gradient_of` their names.
        calls: the calls in "forward", "backward", and "finish()". None are listed with one rank.
        kept: bytes of activations.
        changed: the name of the input that was changed, or "".
        contiguous: whether all tensors that were sent were contiguous.
    """

    values: dict[str, Any]
    calls: dict[str, list[Call]]
    kept: int
    changed: str
    contiguous: bool


def run(
    trial: Trial,
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor | None],
    gradient: Tensor,
    module: nn.Module,
    *,
    finish: bool = False,
) -> Run:
    """Run `function` forward, and `gradient` backward. The memory of `module` does not count."""
    leaves = {
        name: None if x is None else x.detach().requires_grad_(x.is_floating_point())
        for name, x in inputs.items()
    }
    now = {f"`{name}`": x for name, x in leaves.items() if x is not None}
    now["the gradient"] = gradient
    before = {name: x.detach().clone() for name, x in now.items()}
    trial.group.take_events()
    ends = [len(trial.ledger.calls)]
    with memory.Saved(module) as saved:  # views, because a leaf could not be changed in place
        output = function(*(None if x is None else x.view_as(x) for x in leaves.values()))
    ends.append(len(trial.ledger.calls))
    if isinstance(output, Tensor) and output.requires_grad:
        output.backward(gradient if gradient.shape == output.shape else torch.ones_like(output))
        output = output.detach().clone()
    ends.append(len(trial.ledger.calls))
    if finish:
        module.finish()
    ends.append(len(trial.ledger.calls))
    calls = trial.ledger.calls if trial.size > 1 else []
    which = zip(("forward", "backward", "finish()"), ends, ends[1:], strict=False)
    gradients = {gradient_of(name): x.grad for name, x in leaves.items() if x is not None}
    return Run(
        {OUTPUT: output, **gradients},
        {name: calls[start:end] for name, start, end in which},
        saved.bytes,
        next((name for name, x in now.items() if not same(x, before[name])), ""),
        all(event.contiguous for event in trial.group.take_events()),
    )


def unchanged(run: Run) -> Finding | None:
    return COMMON.argument_changed(name=run.changed) if run.changed else None


Variant = tuple[str, str, Tensor]  # the name of a value, a mistake, and the value that it computes


def values_are(
    got: Mapping[str, Any],
    right: Mapping[str, Tensor],
    wrong: Iterable[Variant],
    mistakes: Mistakes,
    tolerance: float = TOLERANCE,
) -> Finding | None:
    """Compare values by name.

    Args:
        wrong: the values that mistakes compute. Findings name only those in `mistakes`.
    """
    for name, value in right.items():
        named = [(key, one) for what, key, one in wrong if what == name and key in mistakes.texts]
        if got[name] is None:
            return observed(f"{name} is None")
        found = explained(got[name], value, named, mistakes, name, tolerance, with_name=True)
        if found:
            return found
    return None


def total(calls: Sequence[Call]) -> int:
    """Return the bytes of all calls. Of each call, the larger side counts."""
    return sum(call.bytes for call in calls)


def calls_text(calls: Sequence[Call]) -> str:
    """List the calls. Equal calls are listed once, with their number."""
    counted = Counter(f"{call.op} of {call.bytes} bytes" for call in calls)
    return ", ".join(f"{n} × {one}" if n > 1 else one for one, n in counted.items()) or "nothing"


def sends_more(run: Run, which: str, size: int, ranks: int, times: int = 1) -> Finding | None:
    """Return a finding if a pass sends more than `times` all-reduces of `size` bytes on a ring.

    An all-reduce may consist of other calls, such as its two halves, which need padding.
    """
    calls = run.calls[which]
    built = not any(call.op == "all_reduce" for call in calls)
    padding = 16 * ranks * times if built else 0
    limit = times * ring_bytes("all_reduce", size, ranks) + padding + 0.5  # halves are rounded
    if ring_bytes_sent(calls) <= limit:
        return None
    needed = f"{times} × all_reduce of {size} bytes is enough" if times else "it needs nothing"
    place = f"the {which} pass" if which in ("forward", "backward") else which
    return MISTAKES.sends_more(which=place, got=calls_text(calls), enough=needed)


def refuses(trial: Trial, attempt: Callable[[], Any], what: str, sizes: Sequence[int]) -> None:
    """Require a ValueError that names a size, on every rank, before anything is sent.

    The size must be one of the `sizes` that are not divisible by the number of ranks.
    """
    wrong = [size for size in sizes if size % trial.size]
    if not wrong:
        return
    uneven = f"{what}, which {trial.size} ranks cannot share evenly"
    error = require_refusal(trial, attempt, what=uneven, seconds=SECONDS)
    text = f"for {what}, it raises ValueError: {error}. It does not name the size, {wrong[0]}"
    trial.require(lambda: None if {*wrong} & {*numbers_in(error)} else observed(text))


def uses_classes(trial: Trial, function: Callable, module: nn.Module, right: list[str]) -> Any:
    """Require that `function` makes its layers with the two classes that it gets."""
    made: list[str] = []

    def making(name: str) -> Callable[..., nn.Module]:
        return lambda *given, **named: made.append(name) or nn.Identity()

    got = trial.run_function(function, module, trial.group, making("column"), making("row"))
    text = f"given two other classes, it makes layers with {made}, expected {right}"
    trial.require(lambda: None if sorted(made) == sorted(right) else observed(text))
    return got
