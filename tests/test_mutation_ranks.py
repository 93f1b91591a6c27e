"""Mutants on real ranks: one set of ranks goes through many, whatever they leave behind."""

import os
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from parlab.mutation.lab import Exercise, exercises
from parlab.mutation.mutants import mutants_of
from parlab.mutation.ranks import RANKS, Ranks, RanksGone
from parlab.mutation.trying import Broken, Tried, try_mutants

STUCK_SECONDS = 1.0
SECONDS = 60.0  # for what ends by itself, on a busy machine too
HIDDEN = "check.show_values(received=ring_shift(np.arange(3) + 10 * rank, comm).tolist())"
[SHIFT] = exercises(["ring_shift"])
[FIT] = exercises(["fit_alpha_beta"])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as started:
        yield started


def ask(ranks: Ranks, answer: str, code: str, seconds: float = SECONDS) -> dict:
    return ranks.ask(SHIFT.setup, answer, code, seconds=seconds, stuck=STUCK_SECONDS)


def shift(*lines: str) -> str:
    return "\n    ".join(["def ring_shift(x, comm):", *lines])


def right_again(ranks: Ranks) -> None:
    """The reference passes as ever, whatever was tried before it."""
    check = ranks.ask(SHIFT.setup, SHIFT.reference, SHIFT.check, seconds=SECONDS, stuck=SECONDS)
    assert check["outcome"] == "accepted", check
    hidden = ask(ranks, SHIFT.reference, HIDDEN)
    received = [[30, 31, 32], [0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert (hidden["outcome"], hidden["values"]) == ("accepted", [{"received": received}])


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
def test_an_answer_is_told_and_nothing_of_it_stays(
    ranks: Ranks, lines: list[str], check: str, mistake: str | None, hidden: str
) -> None:
    answer = shift(*lines)
    asked = ask(ranks, answer, SHIFT.check)
    assert asked["outcome"] == check, asked
    if mistake == "does_not_end":
        assert asked["mistake"] == mistake
    seconds = STUCK_SECONDS if hidden == "stuck" else SECONDS
    asked = ask(ranks, answer, HIDDEN, seconds)
    assert asked["outcome"] == hidden, asked
    right_again(ranks)


def test_an_endless_loop_is_ended(ranks: Ranks) -> None:
    asked = ask(ranks, shift("while True:", "    pass"), HIDDEN, STUCK_SECONDS)
    assert asked["outcome"] == "stuck"
    right_again(ranks)


def test_a_rank_that_ends_is_noticed() -> None:
    with Ranks() as ranks:
        right_again(ranks)
        answer = shift("import os", "os._exit(3) if comm.rank == 1 else comm.recv()")
        with pytest.raises(RanksGone):
            ask(ranks, answer, HIDDEN, STUCK_SECONDS)


def test_ranks_end_though_what_started_them_is_gone() -> None:
    with Ranks() as ranks:
        right_again(ranks)
        ours = [process for process in psutil.process_iter() if ranks.is_one(process)]
        starter = next(p for p in ours if p.ppid() == os.getpid())
        starter.suspend()  # it cannot end them
        starter.kill()
        starter.wait()
    _, left = psutil.wait_procs(ours, timeout=SECONDS)
    assert len(ours) == 1 + RANKS and left == []


def test_every_mutant_of_an_exercise_gets_its_verdict() -> None:
    reported: list[tuple[str, int]] = []
    finished: list[list[Tried]] = []
    found = try_mutants(
        [FIT],
        report=lambda exercise, tried, left: reported.append((exercise.key, left)),
        finished=lambda exercise, tried: finished.append(tried),
    )
    tried = found["fit_alpha_beta"]
    assert [one.mutant for one in tried] == mutants_of(FIT.cell)
    assert [left for _, left in reported] == list(reversed(range(len(tried))))
    assert finished == [tried]
    killed = [one for one in tried if not one.accepted_by]
    assert len(killed) > len(tried) / 2
    # The two results in the wrong order: both checks say so.
    assert any(one.mutant.operator == "returned" for one in killed)


def test_without_a_reference_that_passes_nothing_is_said() -> None:
    def nothing(*_: object) -> None:
        pass

    broken: Exercise = replace(FIT, check="raise ValueError('what is this?')")
    with pytest.raises(Broken, match="fit_alpha_beta: the reference is failed: ValueError"):
        try_mutants([broken], nothing, nothing)
