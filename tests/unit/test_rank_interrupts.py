"""Interrupts end a rank's cell, and nothing else, whatever the cell has set for SIGINT."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from parlab.rank.engine import interrupts

HANDLERS = {
    "ignored": "signal.SIG_IGN",
    "ends the process": "signal.SIG_DFL",
    "raises KeyboardInterrupt": "signal.default_int_handler",
    "raises an error of its own": "lambda *_: 1 / 0",
    "does nothing": "lambda *_: None",
}
SIGNALS = (signal.SIGINT, interrupts.SIGNAL)


@pytest.fixture(autouse=True)
def kernel() -> Iterator[SimpleNamespace]:
    """Prepare this process for a cell, as ipykernel does on a rank."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    kernel = SimpleNamespace()
    interrupts.install(kernel)
    kernel.pre_handler_hook()
    yield kernel
    for number, handler in before.items():
        signal.signal(number, handler)


def run_cell(code: str) -> None:
    exec(compile(code, "/tmp/ipykernel_1/2.py", "exec"), {"signal": signal, **vars(interrupts)})


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_an_interrupt_ends_a_cell_with_its_own_handler(handler: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_cell(f"signal.signal(signal.SIGINT, {handler})\ninterrupt()")


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_an_interrupt_after_the_cell_has_no_effect(handler: str) -> None:
    """On a busy machine, it may arrive before ipykernel has replaced the handler of the cell."""
    run_cell(f"signal.signal(signal.SIGINT, {handler})")
    raised = None
    try:
        interrupts.interrupt()
    except BaseException as error:  # KeyboardInterrupt would end the tests
        raised = error
    assert raised is None


def test_a_process_that_is_not_prepared_for_interrupts_survives_them() -> None:
    """The supervisor may interrupt a rank at any time."""
    signal.signal(interrupts.SIGNAL, signal.SIG_DFL)
    interrupts.interrupt()


def test_the_next_cell_can_be_interrupted_again(kernel: SimpleNamespace) -> None:
    run_cell("for number in (SIGNAL, signal.SIGINT): signal.signal(number, signal.SIG_IGN)")
    kernel.pre_handler_hook()
    with pytest.raises(KeyboardInterrupt):
        run_cell("interrupt()")
