"""What is required of any parallel layer: its share, its gradients, its traffic, its refusals."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel.layers import SECONDS, Passed, Right, Shares, share_of
from parlab.checks.trial import Trial
from parlab.costs.collectives import ring_bytes
from parlab.ledger import Call
from parlab.ledger.ledger import ring_bytes_sent

# What any parallel layer may do wrong.
MISTAKES = Mistakes(
    no_reduce_backward=(
        "{name} is this rank's part: the ranks' parts have to be added in the backward pass. That "
        "is what f is for, where the parallel part begins"
    ),
    reduced_again=(
        "{name} is {ranks} times what is right: it was whole on every rank already, and has been "
        "added up over the ranks once more"
    ),
    not_summed="{name} is this rank's part: the ranks' parts have to be added. That is what g does",
    whole_weights=(
        "{name} is whole on this rank, {got} numbers where its share has {right}: each rank holds "
        "and computes its own part"
    ),
    weights_gathered=(
        "{got} bytes of parameters are sent in the {which} pass: the weights stay where they are, "
        "and activations travel"
    ),
    not_own_memory=(
        "{name} is a view that keeps {got} bytes in memory where {right} are its own: the whole "
        "layer is still there. Copy the part"
    ),
    memory_of_serial=(
        "{name} lies in the memory of the layer that was given: an optimizer's step would change "
        "both. Make a copy"
    ),
    strided=(
        "{name} has every N-th of the layer's {which}: rank r has the r-th of N parts, each in one "
        "piece"
    ),
    sends_more="the {which} pass sends {got} bytes, and {enough}",
    kept_whole="the serial layer is still in memory after it was cut: something refers to it",
    not_refused=(
        "it accepts {what}: what {ranks} ranks cannot share evenly is to be refused, with a "
        "ValueError that says so"
    ),
    sent_before_refusing="it refuses {what}, but only after it has sent something",
)


def texts(*keys: str) -> dict[str, str]:
    """Of these mistakes, for the check of an exercise in which they can be made."""
    return {key: MISTAKES.texts[key] for key in keys}


def holds_its_share(passed: Passed, right: Right, shares: Shares, trial: Trial) -> Finding | None:
    """Names, shapes, values and memory of the parameters."""
    if passed.parameters.keys() != right.parameters.keys():
        missing = sorted(right.parameters.keys() - passed.parameters.keys())
        extra = sorted(passed.parameters.keys() - right.parameters.keys())
        told = [f"there is no {missing[0]}"] if missing else []
        told += [f"there is a parameter {extra[0]}"] if extra else []
        return evidence(f"the parameters have other names than is asked for: {', '.join(told)}")
    for name, whole in right.parameters.items():
        own = share_of(name, whole, shares, trial.rank, trial.size)
        got = passed.parameters[name]
        if got.shape == whole.shape != own.shape:
            return MISTAKES.whole_weights(name=name, got=got.numel(), right=own.numel())
        if (found := equal(got, own, name)) is not None:
            return found
    for name, size in passed.memory.items():
        if size > passed.parameters[name].nbytes:
            return MISTAKES.not_own_memory(
                name=name, got=size, right=passed.parameters[name].nbytes
            )
    if passed.shared:
        return MISTAKES.memory_of_serial(name=passed.shared[0])
    if passed.serial_changed:
        return COMMON.argument_changed(name="the serial layer")
    return MISTAKES.kept_whole() if passed.held_back else None


def are_parts(everyone: Sequence[Tensor | None], right: Tensor) -> bool:
    """Whether each rank has another part, and together they are right."""
    if len(everyone) == 1 or any(g is None or g.shape != right.shape for g in everyone):
        return False
    alike = all(same(g, everyone[0], TOLERANCE) for g in everyone)
    return not alike and same(sum(everyone), right, TOLERANCE)


def gradient_is(
    got: Tensor | None,
    right: Tensor,
    everyone: Sequence[Tensor | None],
    name: str,
    *,
    whole: bool = True,
) -> Finding | None:
    """Whether a gradient is right; where it is this rank's part, or N times too much, say so.

    `everyone` has that of each rank; `whole` says that each is to have all of it.
    """
    ranks = len(everyone)
    if got is None:
        return evidence(f"the gradient of {name} is None")
    if same(got, right, TOLERANCE):
        return None
    if whole and are_parts(everyone, right):
        return MISTAKES.no_reduce_backward(name=f"the gradient of {name}")
    if ranks > 1 and got.shape == right.shape and same(got, ranks * right, TOLERANCE):
        return MISTAKES.reduced_again(name=f"the gradient of {name}", ranks=ranks)
    return equal(got, right, f"the gradient of {name}", TOLERANCE)


def gradients_are(
    passed: Passed,
    right: Right,
    shares: Shares,
    everyone: Sequence[Passed],
    trial: Trial,
) -> Finding | None:
    """The gradients of all parameters, this rank's share of them."""
    for name, whole in right.gradients.items():
        own = share_of(name, whole, shares, trial.rank, trial.size)
        of_all = [one.gradients[name] for one in everyone]
        found = gradient_is(
            passed.gradients[name], own, of_all, name, whole=shares[name] is None,
            
        )  # fmt: skip
        if found is not None:
            return found
    return None


def untouched(passed: Passed, name: str = "`x`") -> Finding | None:
    return None if passed.unchanged else COMMON.argument_changed(name=name)


def total(calls: Sequence[Call]) -> int:
    """Bytes of all calls, the larger side of each."""
    return sum(call.bytes for call in calls)


def sends_too_much(calls: Sequence[Call], size: int, ranks: int, times: int = 1) -> bool:
    """Whether calls send more than all-reduces of `size` bytes, so many `times`, on a ring.

    Such an all-reduce may be made of others: its two halves, or messages. Those are padded where a
    tensor does not divide, and a library's all-reduce is not.
    """
    if ranks == 1:
        return False
    built = not any(call.op == "all_reduce" for call in calls)
    padding = 16 * ranks * times if built and size else 0
    enough = times * ring_bytes("all_reduce", size, ranks)
    return ring_bytes_sent(calls) > enough + padding + 0.5  # of a byte: halves are rounded


def told_calls(calls: Sequence[Call]) -> str:
    """What was sent, in words, the same calls counted."""
    counted = Counter(f"{call.op} of {call.bytes}" for call in calls)
    return ", ".join(f"{n} × {one}" if n > 1 else one for one, n in counted.items())


def sends(
    calls: Sequence[Call], size: int, ranks: int, which: str, weights: int = 0
) -> Finding | None:
    """Whether a pass sends no more than one all-reduce of `size` bytes; nothing where it is 0.

    `weights` are the bytes of the parameters, where they might travel.
    """
    if not sends_too_much(calls, size, ranks):
        return None
    if weights and any(call.op == "all_gather" and call.bytes >= weights for call in calls):
        return MISTAKES.weights_gathered(got=total(calls), which=which)
    enough = f"one all-reduce of {size} bytes is enough" if size else "nothing is to be sent"
    return MISTAKES.sends_more(which=which, got=told_calls(calls), enough=enough)


def refusal(trial: Trial, attempt: Callable[[], Any], what: str, sizes: Sequence[int]) -> None:
    """Require that `attempt` raises a ValueError on every rank, before anything is sent.

    Of `sizes`, some do not divide by the number of ranks; the error names one of those.
    """
    if trial.size == 1:
        return

    def tried() -> Exception | None:
        try:
            attempt()
        except NotImplementedError:
            raise  # a stub
        except Exception as error:
            return error
        return None

    raised = trial.run_function(tried, seconds=SECONDS)
    trial.require(
        lambda: _refused(raised, what, trial.size),
        lambda: _named(raised, what, [size for size in sizes if size % trial.size]),
        lambda: MISTAKES.sent_before_refusing(what=what) if trial.calls[trial.rank] else None,
    )


def _refused(raised: Exception | None, what: str, ranks: int) -> Finding | None:
    if raised is None:
        return MISTAKES.not_refused(what=what, ranks=ranks)
    if not isinstance(raised, ValueError):
        return evidence(
            f"for {what} it raises {type(raised).__name__}: {raised}. A ValueError is asked for"
        )
    return None if str(raised) else evidence(f"the ValueError for {what} says nothing")


def _named(error: Exception | None, what: str, wrong: Sequence[int]) -> Finding | None:
    numbers = re.findall(r"\d+", str(error))
    if any(str(size) in numbers for size in wrong):
        return None
    told = " or ".join(map(str, dict.fromkeys(wrong)))
    return evidence(f"the ValueError for {what} does not name the size, {told}: it says '{error}'")


def uses_classes(trial: Trial, module: nn.Module) -> None:
    """Require that the exercise's function makes its layers with the two classes it is given."""
    made: list[str] = []

    def noted(name: str) -> Callable[..., nn.Module]:
        def make(linear: nn.Linear, group: object, *more: object, **named: object) -> nn.Module:
            made.append(name)
            return nn.Identity()

        return make

    got = trial.run(module, trial.group, noted("column"), noted("row"))
    trial.require(
        lambda: COMMON.returns_none() if got is None else None,
        lambda: (
            None
            if sorted(made) == ["column", "row"]
            else evidence(
                f"given two other classes, it makes layers with {made or 'neither'} of them"
            )
        ),
    )
