"""Ranks in a page: kept answers get the verdicts of MPI, and bad programs have a clear end.

All tests share one page with four ranks. Each test therefore also shows that the previous test left
the ranks usable.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from parlab_staff.answers.run import Verdict
from parlab_staff.play.pages import page_names
from parlab_staff.play.tries import TRIES
from tests.answers.test_answers import ATTEMPTS, TIMED, problem
from tests.book.browser.ranks_page import SIZE, START, RanksPage, ends, raises, ranks_page
from tests.support.play_answers import Program, programs, setup_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]

KEYS = [name for name in page_names() if name in TRIES]
# An exercise of each kind for `make test`: messages, subgroups, a prediction, and a schedule.
DAILY = ["ring_shift", "grid_communicators", "predict_ring", "gpipe"]
EXCEPTIONS = {("fit_alpha_beta", "with_torch"): "it uses torch, which pages do not have"}


@pytest.fixture(scope="module")
def ranks(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RanksPage]:
    with ranks_page(chromium, tmp_path_factory.mktemp("ranks"), SIZE) as page:
        yield page


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


@pytest.fixture
def usable(ranks: RanksPage) -> Iterator[None]:
    """Require that all ranks work together after the test."""
    yield
    after = ranks.run(f"{START}print(comm.allreduce(rank))")
    assert after["output"] == ["6\n"] * SIZE


def test_a_program_that_prints_without_end_is_stopped(ranks: RanksPage) -> None:
    raises(ranks, "while True: print('x' * 1000)", "printed more than 100,000 characters")


def test_a_program_that_ignores_the_end_of_its_output_can_be_stopped(ranks: RanksPage) -> None:
    code = "while True:\n  try: print('x' * 1000)\n  except Exception: pass"
    kinds, ended = ends(ranks, code, seconds=1)
    assert kinds == ["interrupted"] * SIZE
    assert all(len(text) <= 100_000 for text in ended["output"])


def test_an_interrupt_that_comes_again_changes_no_report(ranks: RanksPage) -> None:
    ranks.page.evaluate(
        """size => {
        window.output = Array.from({ length: size }, () => []);  // not that of the program before
        const printed = () => window.output.every((texts) => texts.length);
        const interrupt = () => window.ranks.interrupts.forEach((one) => (one[0] = 2));
        window.again = setInterval(() => printed() && interrupt(), 5);
    }""",
        SIZE,
    )
    try:
        _, ended = ends(ranks, "print('begun')\nwhile True: pass")
    finally:
        ranks.page.evaluate("clearInterval(window.again)")
    assert [one["kind"] for one in ended["results"]] == ["interrupted"] * SIZE
    # The first interrupt may reach a rank that has printed, but has not left that line yet.
    lines = {5: "print('begun')", 6: "while True: pass"}
    assert all(one["text"] == lines.get(one["line"]) for one in ended["results"])
    assert ended["output"] == ["begun\n"] * SIZE


# Interrupts the sending of a text before each of its lines. Each rank tries other lines.
INTERRUPTED_OUTPUT = """
import signal, sys

def interrupts_at(number):
    def trace(frame, event, argument):
        nonlocal number
        if frame.f_code.co_name not in ("flush", "_send"):
            return None
        number -= event == "line"
        if number == -1:
            signal.raise_signal(signal.SIGINT)
        return trace
    return trace

sys.settrace(interrupts_at({first} + rank))
print("begun", flush=True)
sys.settrace(None)
"""


@pytest.mark.parametrize("first", [0, SIZE])
def test_an_interrupt_while_a_text_is_sent_does_not_repeat_it(ranks: RanksPage, first: int) -> None:
    kinds, ended = ends(ranks, INTERRUPTED_OUTPUT.replace("{first}", str(first)))
    assert "interrupted" in kinds
    assert ended["output"] == ["begun\n"] * SIZE


def test_each_rank_may_use_100_mb(ranks: RanksPage) -> None:
    code = "parts = [bytes(1 << 20) for _ in range(100)]\ncomm.Barrier()\nprint(len(parts))"
    kinds, ended = ends(ranks, code)
    assert kinds == ["returned"] * SIZE
    assert ended["output"] == ["100\n"] * SIZE


@pytest.mark.usefixtures("usable")
@pytest.mark.nightly
def test_more_memory_than_a_page_has_raises_an_error(ranks: RanksPage) -> None:
    raises(ranks, "np.ones(1 << 30, np.uint8)", "MemoryError")
    raises(ranks, "parts = []\nwhile True: parts.append(bytes(1 << 24))", "MemoryError", line=6)


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


@pytest.mark.usefixtures("usable")
def test_ranks_that_wait_for_one_that_raised_are_stuck(ranks: RanksPage) -> None:
    kinds, ended = ends(ranks, "if rank == 1: 1 / 0\ncomm.recv(source=1)")
    assert kinds == ["stuck", "raised", "stuck", "stuck"]
    waits = {"api": "recv", "kind": "recv", "peer": 1, "tag": -1}
    assert ended["results"][0]["waits"] == waits
    assert ended["results"][0]["text"] == "comm.recv(source=1)"


def test_a_message_may_have_50_mb_but_not_100(ranks: RanksPage) -> None:
    code = "x = np.full(SIZE << 20, rank, np.uint8)\nif rank == 0: comm.Send(x, 1)\n"
    code += "if rank == 1: comm.Recv(x, 0); print(x.sum())"
    kinds, ended = ends(ranks, code.replace("SIZE", "50"))
    assert kinds == ["returned"] * SIZE
    assert ended["output"][1] == "0\n"
    raises(ranks, code.replace("SIZE", "100"), "more than 64 MB at the same time", line=6)


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import time; time.sleep(100)", "while rank == 2: pass"],
)
def test_stop_ends_a_program(ranks: RanksPage, code: str) -> None:
    begun = "comm.Barrier()\nprint('begun')"  # on all ranks
    kinds, ended = ends(ranks, f"{begun}\n{code}\ncomm.Barrier()", stopWhenPrinted=True)
    assert kinds == ["interrupted"] * SIZE, ended["results"]
    assert all(result["line"] for result in ended["results"]), ended["results"]


def test_a_program_that_is_stopped_before_it_begins_does_not_run(ranks: RanksPage) -> None:
    for stop, outcome, output in ((0, "returned", "begun\n"), (1, "interrupted", "")) * 2:
        kinds, ended = ends(ranks, "print('begun')", stopAtOnce=stop)
        assert kinds == [outcome] * SIZE
        assert ended["output"] == [output] * SIZE


# Interrupts these messages at each of Python's calls in them. Each rank tries a quarter of them.
INTERRUPTED = """
from mpi4py import _operations
import signal, sys

def interrupted(number):
    def count(frame, event, argument):
        nonlocal number
        number -= event == "call"
        if number == -1:
            signal.raise_signal(signal.SIGINT)
    comm, x, y = MPI.COMM_SELF.Dup(), np.ones(3), np.empty(3)
    _operations._under_way.clear()
    sys.setprofile(count)
    try:
        request = comm.Irecv(y, 0)
        comm.Send(x, 0)
        request.Wait()
        MPI.Request.Waitany([comm.isend("object", 0), comm.irecv(source=0)])
        comm.Allreduce(x, y)
    except BaseException as error:
        return type(error).__name__
    finally:
        sys.setprofile(None)

ends = []
while end := interrupted(4 * len(ends) + rank):
    ends.append(end)
print(len(ends) > 15, *set(ends))
"""


def test_an_interrupt_anywhere_in_a_call_is_a_keyboard_interrupt(ranks: RanksPage) -> None:
    _, ended = ends(ranks, INTERRUPTED)
    assert ended["output"] == ["True KeyboardInterrupt\n"] * SIZE


@pytest.mark.usefixtures("usable")
def test_a_rank_that_waits_for_a_stopped_one_is_stopped_too(ranks: RanksPage) -> None:
    code = "if rank == 0:\n  try:\n    print('begun')\n    while True: pass\n"
    code += "  except KeyboardInterrupt: comm.recv(source=1)\nwhile True: pass"
    kinds, ended = ends(ranks, code, stopWhenPrinted=True)
    assert kinds == ["interrupted"] * SIZE
    assert ended["results"][0]["line"] == 9


@pytest.mark.usefixtures("usable")
@pytest.mark.nightly
def test_a_rank_that_does_not_stop_is_replaced(ranks: RanksPage) -> None:
    code = "while rank == 1:\n  try:\n    print('begun')\n    while True: pass\n"
    code += "  except BaseException: pass"
    kinds, ended = ends(ranks, code, stopWhenPrinted=True)
    assert kinds[1] == "killed"
    assert "killed" not in [kinds[0], *kinds[2:]]
    lost = ended["results"][1]
    assert lost["error"] == "did not react" and lost["line"] > 4


@pytest.mark.usefixtures("usable")
@pytest.mark.nightly
def test_a_rank_whose_python_ends_is_replaced(ranks: RanksPage) -> None:
    kinds, _ = ends(ranks, "import os\nif rank == 0: os._exit(1)\ncomm.Barrier()")
    assert kinds == ["raised", "stuck", "stuck", "stuck"]


@pytest.mark.usefixtures("usable")
@pytest.mark.nightly
def test_a_rank_that_keeps_much_memory_is_replaced(ranks: RanksPage) -> None:
    _, ended = ends(ranks, "parts = [bytes(1 << 24) for _ in range(26)]")
    assert min(ended["heaps"]) > 400 << 20
    assert max(ranks.run("")["heaps"]) < 200 << 20


@pytest.mark.usefixtures("usable")
@pytest.mark.nightly
def test_a_call_that_polls_forever_does_not_end(ranks: RanksPage) -> None:
    [reference, *_] = programs("ring_shift")
    polls = "def ring_shift(x, comm):\n  while not comm.Iprobe(): pass"
    ended = ranks.run(polls, reference.setup, reference.check, seconds=60)
    assert [result["name"] for result in ended["results"]] == ["does_not_end"] * SIZE


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
