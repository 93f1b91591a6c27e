"""Mutants on real ranks: one set of ranks runs many mutants, whatever they leave behind."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from parlab_staff.mutants.generate import mutants_of
from parlab_staff.mutants.outcome import Outcome, Trials
from parlab_staff.mutants.run import Broken, Tried, try_mutants
from parlab_staff.mutants.target import Target, targets

STUCK_SECONDS = 1.0
SECONDS = 60.0  # for calls that end by themselves, even on a busy machine
HIDDEN = "check.show_values(received=ring_shift(np.arange(3) + 10 * rank, comm).tolist())"
[SHIFT] = targets(["ring_shift"])
[FIT] = targets(["fit_alpha_beta"])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Trials]:
    with Trials() as started:
        yield started


def tried(ranks: Trials, answer: str, code: str, seconds: float = SECONDS) -> Outcome:
    return ranks.outcome(SHIFT, answer, code, seconds=seconds, stuck=SECONDS)


def shift(*lines: str) -> str:
    return "\n    ".join(["def ring_shift(x, comm):", *lines])


def right_again(ranks: Trials) -> None:
    """Require that the reference still passes, after the mutants that were tried before it."""
    check = tried(ranks, SHIFT.reference, SHIFT.check)
    assert check.ending == "accepted", check
    hidden = tried(ranks, SHIFT.reference, HIDDEN)
    received = [[30, 31, 32], [0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert (hidden.ending, hidden.values) == ("accepted", [{"received": received}])


@pytest.mark.parametrize(
    ("lines", "check", "mistake", "hidden"),
    [
        (["return x"], "rejected", "does_not_send", "accepted"),
        (["comm.Barrier()"], "rejected", "library", "failed"),
        (["return comm.recv(source=0)"], "rejected", "does_not_end", "stuck"),
        (["comm.Isend(x, (comm.rank + 1) % comm.size)", "return x"], "rejected", None, "accepted"),
        (["if comm.rank == 2:", "    return None", "comm.Barrier()"], "rejected", None, "stuck"),
    ],
    ids=["wrong", "another", "hangs", "leaves a message", "does not come"],
)
def test_the_outcome_of_an_answer_is_reported_and_nothing_of_it_is_left(
    ranks: Trials, lines: list[str], check: str, mistake: str | None, hidden: str
) -> None:
    answer = shift(*lines)
    outcome = tried(ranks, answer, SHIFT.check)
    assert outcome.ending == check, outcome
    if mistake == "does_not_end":
        assert outcome.mistake == mistake
    seconds = STUCK_SECONDS if hidden == "stuck" else SECONDS
    outcome = tried(ranks, answer, HIDDEN, seconds)
    assert outcome.ending == hidden, outcome
    right_again(ranks)


def test_an_endless_loop_is_ended(ranks: Trials) -> None:
    outcome = tried(ranks, shift("while True:", "    pass"), HIDDEN, STUCK_SECONDS)
    assert outcome.ending == "stuck"
    right_again(ranks)


@pytest.mark.nightly
def test_new_ranks_start_after_one_has_ended(ranks: Trials) -> None:
    answer = shift("import os", "os._exit(3) if comm.rank == 1 else comm.recv()")
    outcome = tried(ranks, answer, HIDDEN)
    assert (outcome.ending, "rank 1 ended" in outcome.message) == ("stuck", True), outcome
    right_again(ranks)


def test_every_mutant_of_an_exercise_gets_its_verdict() -> None:
    reported: list[tuple[str, int]] = []
    finished: list[list[Tried]] = []
    found = try_mutants(
        [FIT],
        report=lambda exercise, tried, left: reported.append((exercise.key, left)),
        finished=lambda exercise, tried: finished.append(tried),
    )
    every = found["fit_alpha_beta"]
    assert [one.mutant for one in every] == mutants_of(FIT.exercise.cell)
    assert [left for _, left in reported] == list(reversed(range(len(every))))
    assert finished == [every]
    killed = [one for one in every if not one.accepted_by]
    assert len(killed) > len(every) / 2
    # Both checks reject the two results in the wrong order.
    assert any(one.mutant.operator == "returned" for one in killed)


def test_without_a_passing_reference_there_is_no_verdict() -> None:
    def nothing(*_: object) -> None:
        pass

    broken: Target = replace(FIT, check="raise ValueError('what is this?')")
    with pytest.raises(Broken, match="fit_alpha_beta: the reference is failed: ValueError"):
        try_mutants([broken], nothing, nothing)
