"""Reports in one line why ranks ended and, if they ran out of time, where they were."""

import re
from pathlib import Path

from parlab.runtime.rank_names import by_value, ranks_text
from parlab_staff.ranks import RanksGone

CALLS = 4  # innermost calls of a rank that are shown
_CALL = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def details(gone: RanksGone, file: str = "") -> str:
    """Return the reasons, each after a semicolon.

    Args:
        file: the file name of the cell that ran.
    """
    places = {rank: innermost(stack, file) for rank, stack in enumerate(gone.stacks) if stack}
    if places:
        texts = [
            f"{ranks_text(ranks, len(gone.stacks))} in {place}" for ranks, place in by_value(places)
        ]
    else:
        texts = [*gone.endings[:1], " | ".join(gone.output.splitlines()[-5:])]
    return "".join(f"; {text}" for text in texts if text)


def innermost(stack: str, file: str) -> str:
    """Return a rank's innermost calls, and its line in `file`, from what `faulthandler` wrote.

    The main thread comes last in `stack`.
    """
    found = _CALL.findall(stack.rpartition("(most recent call first)")[2])
    calls = [call for call in found if not call[0].startswith("<frozen ")]  # Python's own imports
    shown = [f"{function} ({Path(name).name}, line {line})" for name, line, function in calls]
    place = next((f"line {line} of the cell" for name, line, _ in calls if name == file), "")
    return " < ".join(shown[:CALLS]) + (f", {place}" if place else "")
