"""Combines the findings of all ranks into one verdict, and raises it as an error."""

from collections.abc import Callable
from typing import Any

from parlab.checks.base.collective import fresh_seed, gather, private_communicator
from parlab.checks.base.draw import Draw
from parlab.checks.base.mistakes import Finding
from parlab.runtime.rank_names import by_value, ranks_text


class CheckFailed(AssertionError):
    """An exercise is wrong. The message is the same on every rank and says what to look at."""

    def __init__(self, exercise: str, finding: Finding, repeat: str = "") -> None:
        """`repeat` is the call that repeats the check with the same inputs and pauses."""
        name = f" [{finding.mistake}]" if finding.mistake else ""
        super().__init__(f"{exercise}{name}: {finding.text}")
        self.exercise, self.finding, self.repeat = exercise, finding, repeat

    def _render_traceback_(self) -> list[str]:
        # IPython calls this. The frames of the check would only hide the message.
        again = [f"To repeat exactly this, in a %%px cell: {self.repeat}"] if self.repeat else []
        return [*str(self).splitlines(), *again]


class Judge:
    """Judges the `function` that a learner wrote for exercise `key`, on all ranks together.

    Attributes:
        rank, world_size: this rank and the number of ranks, in the lab.
        seed: the seed of `draw` and of the pauses before messages.
        draw: a random generator, in the same state on all ranks.
        uses_ranks: whether the exercise uses several ranks, so that findings name their number.
        trials_made: how many trials were made, which the pauses depend on.
        takes_group: whether a trial on this rank has made a process group for the function.
        repeats_a_case: whether the next case of a trial will be tried twice.
    """

    def __init__(self, key: str, function: Callable[..., Any], seed: int | None = None) -> None:
        """Take a new seed if `seed` is None. Collective."""
        self.key, self.function = key, function
        comm = private_communicator()
        self.rank, self.world_size = comm.rank, comm.size
        self.seed = fresh_seed() if seed is None else seed
        self.draw = Draw(self.seed)
        self.uses_ranks = True
        self.takes_group = False
        self.trials_made = 0
        self.repeats_a_case = True  # once

    def fail(self, finding: Finding, *, repeatable: bool = True) -> None:
        """Raise CheckFailed. Every rank must call this with the same finding.

        Args:
            repeatable: whether to print the call that repeats the check.
        """
        name = getattr(self.function, "__name__", self.key)
        repeat = f"check.{self.key}({name}, seed={self.seed})" if repeatable else ""
        raise CheckFailed(self.key, finding, repeat)

    def agree(self, finding: Finding | None, place: tuple[int, int]) -> None:
        """Raise CheckFailed with the first rank's finding, if any rank has one. Collective.

        Args:
            finding: what is wrong on this rank, or None.
            place: this rank's number in the trial, and the trial's number of ranks. If all ranks of
                the trial have the same finding, the error names no ranks.
        """
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
