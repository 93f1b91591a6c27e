"""Ranks in a page: kept answers get the verdicts of MPI; errors and messages are reported.

These tests share one page with four ranks. Each test therefore also shows that the previous test
left the ranks usable.
"""

import pytest

from parlab_staff.answers.run import Verdict
from parlab_staff.play.pages import page_names
from parlab_staff.play.tries import TRIES
from tests.answers.test_answers import ATTEMPTS, TIMED, problem
from tests.book.browser.ranks_page import SIZE, RanksPage, ends, raises
from tests.support.play_answers import Program, programs, setup_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]

KEYS = [name for name in page_names() if name in TRIES]
# An exercise of each kind for `make test`: messages, subgroups, a prediction, and a schedule.
DAILY = ["ring_shift", "grid_communicators", "predict_ring", "gpipe"]
EXCEPTIONS = {("fit_alpha_beta", "with_torch"): "it uses torch, which pages do not have"}


def verdict(ranks: RanksPage, program: Program) -> Verdict:
    """Return the verdict in the page, in the form of the tests of answers on MPI."""
    answer = program.answer
    ended = ranks.run(program.code, program.setup, program.check, seconds=60)
    results = ended["results"]
    passed = all(result["kind"] == "returned" for result in results)
    failed = next((one for one in results if one["kind"] == "failed"), None)
    mistake = failed["name"] if failed else None
    text = failed["error"] if failed else str(results)
    assert passed or all(one["kind"] == "failed" for one in results), f"{answer.name}: {text}"
    return Verdict(answer.exercise, answer.name, passed, mistake, text, ended["ms"] / 1000)


def problems(ranks: RanksPage, key: str, chosen: list[Program]) -> list[str]:
    """Return a line for each answer whose verdict in the page is wrong."""
    found = []
    for program in chosen:
        for _ in range(ATTEMPTS + 1 if key == TIMED else 1):
            wrong = problem(program.answer, verdict(ranks, program))
            if not wrong:
                break
        if bool(wrong) != ((key, program.answer.name) in EXCEPTIONS):
            found.append(f"{program.answer.name}: {wrong or 'it gets its verdict after all'}")
    return found


@pytest.mark.parametrize("key", DAILY)
def test_the_reference_and_a_mistake_get_their_verdicts(ranks: RanksPage, key: str) -> None:
    all_programs = programs(key)
    mistake = next(one for one in all_programs if one.answer.mistake)
    assert problems(ranks, key, [all_programs[0], mistake]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("key", KEYS)
def test_all_answers_get_the_verdicts_of_mpi(ranks: RanksPage, key: str) -> None:
    assert problems(ranks, key, programs(key)) == []


def test_a_schedule_with_a_backward_pass_before_its_forward_pass_is_refused(
    ranks: RanksPage,
) -> None:
    impossible = (
        "lambda p, m: [[make(r, i) for i in range(m) for make in (backward, forward)]"
        " for r in range(p)]"
    )
    code = f"one_f_one_b = {impossible}\n{TRIES['one_f_one_b'].code}"
    ended = ranks.run(code, setup_of("one_f_one_b") + "\nrank, world_size = comm.rank, comm.size")
    errors = {one["error"] for one in ended["results"] if one["kind"] == "raised"}
    assert errors == {
        f"ValueError: backward({stage}, 0) comes before its forward pass" for stage in range(SIZE)
    }


def test_each_rank_may_use_100_mb(ranks: RanksPage) -> None:
    code = "parts = [bytes(1 << 20) for _ in range(100)]\ncomm.Barrier()\nprint(len(parts))"
    kinds, ended = ends(ranks, code)
    assert kinds == ["returned"] * SIZE
    assert ended["output"] == ["100\n"] * SIZE


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("input('name')", "ranks have no keyboard"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("comm.Send(np.ones(1), SIZE)", "NameError: name 'SIZE' is not defined"),
        ("comm.Send(np.ones(1), 4)", "MPI_ERR_RANK: invalid rank"),
        ("comm.Send(np.ones(4)[::2], 1)", "ndarray is not contiguous"),
        ("comm.Create_graph([1], [1])", "Create_graph is not part of mpi4py in this page"),
        ("MPI.File", "MPI.File is not part of mpi4py in this page"),
        ("[comm.Isend(np.ones(1), 1) for _ in range(300)]", "256 messages under way"),
        ("def f(): return f()\nf()", "RecursionError"),
    ],
)
def test_errors_say_what_is_wrong(ranks: RanksPage, code: str, error: str) -> None:
    raises(ranks, code, error)


def test_exit_ends_a_rank(ranks: RanksPage) -> None:
    assert ends(ranks, "exit()")[0] == ["returned"] * SIZE


def test_a_message_may_have_50_mb_but_not_100(ranks: RanksPage) -> None:
    code = "x = np.full(SIZE << 20, rank, np.uint8)\nif rank == 0: comm.Send(x, 1)\n"
    code += "if rank == 1: comm.Recv(x, 0); print(x.sum())"
    kinds, ended = ends(ranks, code.replace("SIZE", "50"))
    assert kinds == ["returned"] * SIZE
    assert ended["output"][1] == "0\n"
    raises(ranks, code.replace("SIZE", "100"), "more than 64 MB at the same time", line=6)


def test_events_describe_the_messages(ranks: RanksPage) -> None:
    code = "x = np.ones(3)\nif rank == 0: comm.Send(x, 1, tag=7)\nif rank == 1: comm.Recv(x)\n"
    _, ended = ends(ranks, f"{code}comm.Barrier()")
    events = ended["events"]
    messages = {event["kind"]: event for event in events if event["kind"] != "collective"}
    send, receive = messages["send"], messages["recv"]
    assert send["order"] == receive["order"] > 0
    fields = ("rank", "api", "peer", "bytes", "tag", "line")
    described = [tuple(event[field] for field in fields) for event in (send, receive)]
    assert described == [(0, "Send", 1, 24, 7, 6), (1, "Recv", 0, 24, 7, 7)]
    barriers = [event for event in events if event["api"] == "Barrier"]
    assert len({event["order"] for event in barriers}) == 1 and len(barriers) == SIZE
    assert all(0 <= event["t0"] <= event["t1"] for event in events)


def test_a_deadlock_shows_messages_that_no_rank_received(ranks: RanksPage) -> None:
    code = "comm.Isend(np.ones(1), (rank + 1) % 4)\ncomm.Recv(np.ones(1), source=rank)"
    _, ended = ends(ranks, code)
    calls = sorted((event["rank"], event["api"], event["order"]) for event in ended["events"])
    assert calls == [(rank, api, -1) for rank in range(SIZE) for api in ("Isend", "Recv")]


def test_a_tag_may_be_a_number_of_numpy(ranks: RanksPage) -> None:
    code = "sent = comm.isend('found', rank, np.int64(3))\ncomm.Probe(tag=np.int64(3))\n"
    _, ended = ends(ranks, f"{code}print(comm.recv(tag=np.int64(3)))\nsent.wait()")
    assert ended["output"] == ["found\n"] * SIZE, ended["results"]


@pytest.mark.nightly
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_page_has_1_to_8_ranks(ranks: RanksPage, size: int) -> None:
    [reference, *_] = programs("ring_all_reduce")
    try:
        ranks.start(size)
        ended = ranks.run(reference.code, reference.setup, reference.check, seconds=60)
        assert [result["kind"] for result in ended["results"]] == ["returned"] * size
    finally:
        ranks.start(SIZE)
