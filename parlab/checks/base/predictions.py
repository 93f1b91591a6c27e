"""Requirements on numbers that a learner predicts, and a check then measures."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from parlab.checks.base.compare import close, has_type
from parlab.checks.base.mistakes import Finding, observed

Wrong = tuple[str, float, Finding]  # a name, the number that a misconception gives, and which
TOLERANCE = 0.01  # relative: enough for numbers worked out by hand


def form(predicted: Any, measured: Mapping[str, float]) -> Finding | None:
    """Whether there is a number under each name that was asked for."""
    if found := has_type(predicted, Mapping, "a dict of numbers by name"):
        return found
    for name in measured:
        if name not in predicted:
            return observed(f"no number is given for {name!r}")
        if found := has_type(predicted[name], Real, "a number", repr(name)):
            return found
    return None


def is_number(predicted: float, measured: float) -> bool:
    """Whether a prediction is what was measured, within the tolerance; NaN never is."""
    return predicted == measured or close(predicted, measured, TOLERANCE)


def misconception(
    predicted: Mapping[str, float],
    measured: Mapping[str, float],
    wrong: Iterable[Wrong],
) -> Finding | None:
    """The first of them that a wrong number shows."""
    for name, value, finding in wrong:
        if name not in measured or is_number(predicted[name], measured[name]):
            continue
        if is_number(predicted[name], value):
            return finding
    return None


def first_wrong(
    predicted: Mapping[str, float], measured: Mapping[str, float], what: str = "what was measured"
) -> Finding | None:
    """The first prediction that is not `what` is right: how far it is off, not the answer."""
    for name, right in measured.items():
        got = predicted[name]
        if not is_number(got, right):
            ratio = f", {got / right:.3g} times {what}" if right else ""
            return observed(f"{name}: you predicted {got}{ratio}, and that is not what happens")
    return None
