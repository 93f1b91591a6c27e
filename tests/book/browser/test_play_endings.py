"""Ranks in a page: programs that fail, wait, or never end have a clear end.

These tests share one page with four ranks. Each test therefore also shows that the previous test
left the ranks usable.
"""

from collections.abc import Iterator

import pytest

from tests.book.browser.ranks_page import SIZE, START, RanksPage, ends, raises
from tests.support.play_answers import programs

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]


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


@pytest.mark.usefixtures("usable")
@pytest.mark.nightly
def test_more_memory_than_a_page_has_raises_an_error(ranks: RanksPage) -> None:
    raises(ranks, "np.ones(1 << 30, np.uint8)", "MemoryError")
    raises(ranks, "parts = []\nwhile True: parts.append(bytes(1 << 24))", "MemoryError", line=6)


@pytest.mark.usefixtures("usable")
def test_ranks_that_wait_for_one_that_raised_are_stuck(ranks: RanksPage) -> None:
    kinds, ended = ends(ranks, "if rank == 1: 1 / 0\ncomm.recv(source=1)")
    assert kinds == ["stuck", "raised", "stuck", "stuck"]
    waits = {"api": "recv", "kind": "recv", "peer": 1, "tag": -1}
    assert ended["results"][0]["waits"] == waits
    assert ended["results"][0]["text"] == "comm.recv(source=1)"


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
