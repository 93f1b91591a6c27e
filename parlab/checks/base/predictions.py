"""Requirements on numbers that a learner predicts and a check measures."""

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from parlab.checks.base.compare import close, has_type
from parlab.checks.base.globals_used import modules
from parlab.checks.base.mistakes import COMMON, Finding, observed
from parlab.checks.base.trial import Trial

Wrong = tuple[str, float, Finding]  # a name, the number from a misconception, and its finding
TOLERANCE = 0.005  # relative: enough for numbers worked out by hand


def own_formula(function: Callable[..., Any]) -> Finding | None:
    """Return a finding if a function uses the formulas that its check compares with, else None."""
    found = (m for m in modules(function) if m.startswith(("parlab.costs", "parlab.checks")))
    name = min(found, default=None)
    return COMMON.formula_called(name=name) if name else None


def form(predicted: Any, measured: Mapping[str, float]) -> Finding | None:
    """Return None if `predicted` has a number for each name in `measured`; else what is wrong."""
    if found := has_type(predicted, Mapping, "a dict of numbers by name"):
        return found
    for name in measured:
        if name not in predicted:
            return observed(f"no number is given for {name!r}")
        if found := has_type(predicted[name], Real, "a number", repr(name)):
            return found
    return None


def is_number(predicted: float, measured: float) -> bool:
    """Return whether a prediction equals the measurement within the tolerance; NaN never does."""
    return predicted == measured or close(predicted, measured, TOLERANCE)


def misconception(
    predicted: Mapping[str, float],
    measured: Mapping[str, float],
    wrong: Iterable[Wrong],
) -> Finding | None:
    """Return the first misconception that alone explains a wrong number, or None."""
    wrong = list(wrong)
    for name in measured:
        if is_number(predicted[name], measured[name]):
            continue
        found = {
            finding
            for other, value, finding in wrong
            if other == name and is_number(predicted[name], value)
        }
        if len(found) == 1:
            return found.pop()
    return None


def first_wrong(
    predicted: Mapping[str, float], measured: Mapping[str, float], what: str = "what was measured"
) -> Finding | None:
    """Report how far the first wrong prediction is off; return None if all predictions are right.

    The message does not show the right number. `what` names it.
    """
    for name, right in measured.items():
        got = predicted[name]
        if not is_number(got, right):
            ratio = f", {float(got / right):.3g} times {what}" if right else ""
            return observed(f"{name}: you predicted {got}{ratio}, which is wrong")
    return None


def require_numbers(
    trial: Trial,
    predicted: Any,
    right: Mapping[str, float],
    wrong: Iterable[Wrong],
    what: str = "what was measured",
) -> None:
    """Require the right numbers, computed with the function's own formula.

    If a misconception explains a wrong number, its finding comes first.

    Args:
        wrong: the numbers that misconceptions predict.
        what: names the right number in the message about a number that none of them explains.
    """
    trial.require(
        lambda: own_formula(trial.check.function),
        lambda: form(predicted, right),
        lambda: misconception(predicted, right, wrong),
        lambda: first_wrong(predicted, right, what),
    )
