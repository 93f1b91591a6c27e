"""Reads where a thread of this process is, without keeping any of its objects alive.

A Python frame keeps the variables of its function alive, and checks count the tensors that are
alive. On a busy machine, Python sometimes let the function continue while the watchdog held one of
its frames, and a right answer then seemed to keep tensors. faulthandler reads the stacks in C and
keeps Python's lock until it is done, so no frame is held while another thread runs.
"""

import faulthandler
import os
import re
from typing import NamedTuple

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)", re.MULTILINE)
_CALL = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


class CodeLine(NamedTuple):
    """The line of a function that a thread executes."""

    file: str
    number: int
    function: str


def calls_of(thread: int) -> list[CodeLine]:
    """Return the lines of a thread's calls, innermost first. The list is empty if it has ended.

    Only the 100 innermost calls are included.
    """
    with open(os.memfd_create("parlab-stack"), "rb") as file:  # works even if the disk is full
        faulthandler.dump_traceback(file, all_threads=True)
        text = os.pread(file.fileno(), 2**20, 0).decode("utf-8", "replace")
    _, *stacks = _THREAD.split(text)
    for number, stack in zip(stacks[::2], stacks[1::2], strict=True):
        if int(number, 16) == thread:
            found = _CALL.findall(stack)
            return [CodeLine(_decoded(f), int(line), _decoded(name)) for f, line, name in found]
    return []


def _decoded(text: str) -> str:
    """Decode the characters that faulthandler has escaped, such as umlauts."""
    return _ESCAPED.sub(lambda match: chr(int(match[0][2:], 16)), text)
