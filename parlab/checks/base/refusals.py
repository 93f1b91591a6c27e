"""Calls that must raise a ValueError."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from parlab.checks.base.mistakes import COMMON, Finding, observed
from parlab.checks.base.trial import Explain, Trial
from parlab.checks.base.watchdog import is_stub


def require_refusal(
    trial: Trial,
    attempt: Callable[[], Any],
    *,
    what: str,
    names: str | int = "",
    seconds: float | None = None,
    explain: Explain | None = None,
) -> str:
    """Require that `attempt` raises a ValueError with a text before it sends anything.

    Collective over the lab.

    Args:
        what: what must be refused.
        names: a word or a number that the error's text must contain.
        seconds, explain: see `Trial.run_function`.

    Returns:
        The error's text; "" on ranks that take no part.
    """

    def attempted() -> Exception | None:
        try:
            attempt()
        except Exception as error:
            if is_stub(error):
                raise
            return error
        return None

    wanted = f"the number {names}" if isinstance(names, int) else f"`{names}`"
    naming = f" that names {wanted}" if names else ""
    # After an error, messages may be under way: `refused` looks at the error first.
    error = trial.run_function(attempted, seconds=seconds, explain=explain, waits=False)
    prefix = f"for {what}, it"

    def refused() -> Finding | None:
        if error is None:
            return COMMON.not_refused(what=what, naming=naming)
        if not isinstance(error, ValueError):
            return observed(f"{prefix} raises {type(error).__name__}: {error}. Raise a ValueError")
        if not str(error):
            return observed(f"{prefix} raises a ValueError without a text. State what is wrong")
        if trial.calls[trial.rank]:
            return observed(f"{prefix} sends something before it refuses")
        if not _names(names, str(error)):
            return observed(f"{prefix} raises ValueError: {error}. It does not name {wanted}")
        return None

    trial.require(refused)
    return str(error or "")


def require_refusals(
    trial: Trial, calls: Mapping[str, tuple], names: str, *, seconds: float | None = None
) -> None:
    """Require that the learner's function refuses these arguments, listed by what is wrong."""
    for what, arguments in calls.items():
        require_refusal(
            trial,
            lambda: trial.check.function(*arguments),
            what=what,
            names=names,
            seconds=seconds,
        )


def _names(what: str | int, text: str) -> bool:
    """Return whether a text contains a number or a word. The word may be capitalized."""
    if isinstance(what, int):
        return what in numbers_in(text)
    first, rest = what[:1], re.escape(what[1:])
    return not what or bool(re.search(rf"\b[{first}{first.upper()}]{rest}\b", text))


def numbers_in(text: str) -> list[float]:
    """Return the numbers in a text, including those with thousands separators."""
    joined = re.sub(r"(?<=\d)[,_ ](?=\d{3})", "", text)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", joined)]
