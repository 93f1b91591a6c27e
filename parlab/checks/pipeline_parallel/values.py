"""Requirements on a step: the gradients and the loss of the whole batch."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.pipeline_parallel.cases import Case, arguments_swapped, mean_square
from parlab.checks.pipeline_parallel.mistakes import MISTAKES
from parlab.checks.pipeline_parallel.runs import Seen


def loss_is(case: Case, seen: Seen) -> Finding | None:
    trial = case.trial
    if trial.rank != trial.size - 1:
        if seen.loss is None:
            return None
        return MISTAKES.loss_everywhere(rank=trial.rank, got=f"a {type(seen.loss).__name__}")
    if not isinstance(seen.loss, float):
        got = "None" if seen.loss is None else f"a {type(seen.loss).__name__}"
        return COMMON.wrong_type(name="the loss on the last rank", got=got, right="a float")
    right = case.loss()
    if abs(seen.loss - right) <= TOLERANCE * max(1.0, right):
        return None
    return _instead(
        case, torch.tensor([seen.loss]).double(), _losses, "the loss", "values"
    ) or evidence(f"the loss is {seen.loss:.6g} where {right:.6g} is right")


def _losses(case: Case, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [mean_square(case.model()(inputs), targets).view(1)]


def _gradients(case: Case, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    return case.gradients(inputs, targets)


Of = Callable[[Case, Tensor, Tensor], list[Tensor]]


def _instead(
    case: Case, got: Tensor | list[Tensor], of: Of, name: str, what: str
) -> Finding | None:
    """The mistake in weighing micro-batches that gives all of `got`."""
    found = got if isinstance(got, list) else [got]
    counts, samples, pieces = case.counts(), case.samples, case.pieces

    def are(values: list[Tensor]) -> bool:
        return all(same(a, b, TOLERANCE) for a, b in zip(found, values, strict=True))

    if pieces == 1 or are(of(case, case.inputs, case.targets)):
        return None
    cut = zip(case.inputs.tensor_split(pieces), case.targets.tensor_split(pieces), strict=True)
    each = [of(case, x, t) for x, t in cut]

    def weighed(weights: list[float]) -> list[Tensor]:
        return [
            sum(w * one[number] for w, one in zip(weights, each, strict=True))
            for number in range(len(found))
        ]

    if are(weighed([1.0] * pieces)):
        return MISTAKES.loss_not_divided(name=name, what=what, times=pieces)
    if are(weighed([1 / pieces] * pieces)):
        return MISTAKES.remainder_unweighted(name=name, counts=counts)
    last = [0.0] * (pieces - 1)
    if any(are(weighed([*last, w])) for w in (counts[-1] / samples, 1.0, 1 / pieces)):
        return MISTAKES.not_accumulated(name=name)
    used = samples // pieces * pieces
    for some in {used, samples - counts[-1]} - {samples, 0}:
        part = of(case, case.inputs[:some], case.targets[:some])
        if are(part) or are([one * some / samples for one in part]):
            return MISTAKES.remainder_dropped(
                name=name, pieces=pieces, samples=samples, counts=counts
            )
    return None


def gradients_are(case: Case, seen: Seen) -> Finding | None:
    for number, gradient in enumerate(seen.gradients):
        if gradient is None:
            name = f"the gradient of parameter {number}"
            if case.trial.rank < case.trial.size - 1:
                return MISTAKES.no_boundary_gradient(name=name, rank=case.trial.rank)
            return evidence(f"{name} is None")
    right = case.gradients(case.inputs, case.targets)
    pairs = enumerate(zip(seen.gradients, right, strict=True))
    told = (
        equal(got, one, f"the gradient of parameter {number} of this rank", TOLERANCE)
        for number, (got, one) in pairs
    )
    different = next((finding for finding in told if finding), None)
    if different is None:
        return None
    name = "the gradient of this rank's parameters"
    if found := _instead(case, list(seen.gradients), _gradients, name, "gradients"):
        return found
    swapped = case.gradients(case.inputs, case.targets, arguments_swapped)
    if seen.gradients and all(map(_close, seen.gradients, swapped)):
        return MISTAKES.loss_arguments()
    if case.trial.rank < case.trial.size - 1 and _ones(case, seen):
        return MISTAKES.wrong_start(name=name)
    return different


def _close(one: Tensor, other: Tensor) -> bool:
    return same(one, other, TOLERANCE)


def _ones(case: Case, seen: Seen) -> bool:
    """Whether the gradients are those of the sum of the rank's stages' outputs."""
    if case.chunks > 1 or not seen.gradients:
        return False
    model = nn.Sequential(*copy.deepcopy(case.layers[: case.trial.rank + 1]))
    model(case.inputs).sum().backward()
    own = [p.grad for p in model[-1].parameters() if p.requires_grad]
    return all(same(a, b, TOLERANCE) for a, b in zip(seen.gradients, own, strict=True))
