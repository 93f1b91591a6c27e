"""How a check comes to one verdict for all ranks, and says it."""

from collections.abc import Callable
from typing import Any

from parlab.checks.base.collective import fresh_seed, gather, private_communicator
from parlab.checks.base.draw import Draw
from parlab.checks.base.mistakes import Finding
from parlab.runtime.rank_names import by_value, ranks_text


class CheckFailed(AssertionError):
    """An exercise is not right; the message says what to look at, the same on every rank."""

    def __init__(self, exercise: str, finding: Finding) -> None:
        name = f" [{finding.mistake}]" if finding.mistake else ""
        super().__init__(f"{exercise}{name}: {finding.text}")
        self.exercise, self.finding = exercise, finding

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: the check's own frames would only bury the message.
        return str(self).splitlines()


class Judge:
    """Judges `function`, which a learner wrote for exercise `key`, on all ranks together.

    `draw` is a random generator in the same state on all ranks, `world_size` the lab's;
    `takes_group` says whether a trial on this rank has made a process group for it, and
    `repeats_a_case` whether the first case of a trial will be tried twice.
    """

    def __init__(self, key: str, function: Callable[..., Any]) -> None:
        self.key, self.function = key, function
        comm = private_communicator()
        self.rank, self.world_size = comm.rank, comm.size
        self.draw = Draw(fresh_seed())
        self.takes_group = False
        self.repeats_a_case = True  # once

    def fail(self, finding: Finding) -> None:
        """Raise CheckFailed; every rank must call this, with the same finding."""
        raise CheckFailed(self.key, finding)

    def agree(self, finding: Finding | None, place: tuple[int, int] | None = None) -> None:
        """Go on where no rank has a finding, else raise CheckFailed with the first. Collective.

        Args:
            finding: what is wrong on this rank, or None.
            place: this rank's number among those that took part, and how many did; the lab's own
                where it is None. A finding that all of them share is told without saying whose.
        """
        place = place or (self.rank, self.world_size)
        found = [(p, f) for p, f in gather((place, finding)) if f is not None]
        if not found:
            return
        (_, took_part), _ = found[0]
        texts = {rank: f.text for (rank, _), f in found}
        ranks, text = by_value(texts)[0]
        if len(ranks) != took_part:
            text = f"{ranks_text(ranks)}: {text}"
        first = min(found, key=lambda entry: entry[0][0])[1]
        self.fail(Finding(text, first.mistake))
