"""A loss scaler that records its calls, and requirements on steps that all ranks take or skip."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.watchdog import Ended
from parlab.runtime.rank_names import ranks_text

SKIPPING = Mistakes(
    skips_alone=(
        "{who} skipped the step and the others took it, so the ranks' weights differ. An overflow "
        "on one rank concerns all: they must agree on it"
    ),
    leaves_alone=(
        "some ranks have returned, and the others wait for them in a collective. Every rank must "
        "make the same calls in every step"
    ),
    stepped_anyway=(
        "a gradient overflowed, but the step was taken. The weights are now infinite or NaN, and "
        "stay so"
    ),
)


class RecordingScaler:
    """A loss scaler that grows after each good step; `calls` are the arguments of update()."""

    def __init__(self, scale: float) -> None:
        self.scale, self.good_steps, self.growth_interval = scale, 0, 1
        self.growth_factor, self.backoff_factor = 2.0, 0.5
        self.forget()

    def forget(self) -> None:
        """Clear the records."""
        self.calls: list[bool | str] = []
        self.given: list[list[Tensor]] = []  # to unscale()

    def unscale(self, gradients: list[Tensor]) -> bool:
        self.given.append([gradient.clone() for gradient in gradients])
        finite = [bool(gradient.div_(self.scale).isfinite().all()) for gradient in gradients]
        return not all(finite)

    def update(self, overflow: bool) -> None:
        self.calls.append(bool(overflow))
        self.scale *= self.backoff_factor if overflow else self.growth_factor


def updated_once(calls: Sequence[bool | str], overflow: bool) -> Finding | None:
    """Require one call of scaler.update(), after the optimizer's step if `calls` contains one."""
    if calls[-1:] == [overflow] and len(calls) - calls.count("the step") == 1:
        return None
    text = ", ".join(c if isinstance(c, str) else f"scaler.update({c})" for c in calls)
    return observed(
        f"the calls are: {text or 'none'}. Call scaler.update({overflow}) once, at the end"
    )


def skipped_by_all(changed: Sequence[bool], finite: bool) -> Finding | None:
    """Require that no rank's weights changed, and that all of them are finite."""
    still = [rank for rank, one in enumerate(changed) if not one]
    if len(still) == len(changed):
        return None
    if still:
        return SKIPPING.skips_alone(who=ranks_text(still))
    if not finite:
        return SKIPPING.stepped_anyway()
    return observed("a gradient overflowed, but the weights changed. Change nothing in such a step")


def waits_for_others(endings: dict[int, Ended]) -> Finding | None:
    """Explain a step with an overflow from which only some ranks returned."""
    kinds = {ended.kind for ended in endings.values()}
    return SKIPPING.leaves_alone() if {"returned", "stuck"} <= kinds else None


def is_flag(got: Any, right: bool, text: str) -> Finding | None:
    """Require a bool, a tensor, or 0 or 1 with the value `right`. `text` comes before the value."""
    if got is None:
        return COMMON.returns_none()
    if not isinstance(got, bool | Tensor) and got not in (0, 1):
        return observed(f"{text} {got!r}, expected True or False")
    return None if bool(got) == right else observed(f"{text} {bool(got)}, expected {right}")
