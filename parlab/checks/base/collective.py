"""How the ranks of a check agree, over a communicator that no learner's message can disturb.

Ranks must never disagree on how a check goes on, or it would hang itself. So all that they tell
each other goes through `gather`, and a rank whose own part of the check broke down says so there:
every rank then stops, at the same place, with the same text.
"""

import itertools
import os
import pickle
import random
import secrets
import time
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from parlab.checks.base.pickling import packed

POLL_SECONDS = 0.0002

# So much goes to all ranks at once, which is all of nearly everything that they tell each other.
HEAD_BYTES = 4096
_LENGTH_BYTES = 8

# Interrupted: their memory, which MPI may still write to, is kept.
_under_way: list[MPI.Request] = []

_private: MPI.Intracomm | None = None


class OtherRankBroke(Exception):
    """The check itself raised on some rank; `broken` has each such rank's text."""

    def __init__(self, broken: dict[int, str]) -> None:
        super().__init__(broken)
        self.broken = broken


@dataclass(frozen=True)
class _Broken:
    text: str


def private_communicator() -> MPI.Intracomm:
    """The checks' own communicator over all ranks; made at the first call, which is collective."""
    global _private
    if _private is None:
        from parlab.rank.world import new_communicator

        _private = new_communicator()
    return _private


def gather(value: Any) -> list[Any]:
    """Every rank's `value`, on every rank. Collective.

    Ranks that are early sleep while they wait: with more ranks than cores, spinning would slow
    down the ranks that are still at work.

    Raises:
        OtherRankBroke: on all ranks, when one of them called `tell_broken` instead.
    """
    everyone = [pickle.loads(one) for one in _exchanged(packed(value))]
    broken = {rank: v.text for rank, v in enumerate(everyone) if isinstance(v, _Broken)}
    if broken:
        raise OtherRankBroke(broken)
    return everyone


def _exchanged(mine: bytes) -> list[bytes]:
    comm = private_communicator()
    head = (len(mine).to_bytes(_LENGTH_BYTES, "big") + mine)[:HEAD_BYTES].ljust(HEAD_BYTES)
    heads = bytearray(comm.size * HEAD_BYTES)
    _wait(comm.Iallgather(head, heads))
    parts = [heads[start : start + HEAD_BYTES] for start in range(0, len(heads), HEAD_BYTES)]
    lengths = [int.from_bytes(part[:_LENGTH_BYTES], "big") for part in parts]
    room = HEAD_BYTES - _LENGTH_BYTES
    rest = [max(length - room, 0) for length in lengths]
    tails = bytearray(sum(rest))
    if tails:
        _wait(comm.Iallgatherv(mine[room:], (tails, rest)))
    ends = list(itertools.accumulate(rest))
    return [
        bytes(part[_LENGTH_BYTES:][:length]) + tails[end - more : end]
        for part, length, more, end in zip(parts, lengths, rest, ends, strict=True)
    ]


def _wait(request: MPI.Request) -> None:
    try:
        while not request.Test():
            time.sleep(POLL_SECONDS)
    except BaseException:
        _under_way.append(request)
        raise


def tell_broken(text: str) -> None:
    """Raise OtherRankBroke on every rank: this one's part of the check raised. Collective."""
    gather(_Broken(text))


# The tests of the messages fix it: for some mistakes, which of several true messages comes first
# depends on what is drawn.
_seeds = random.Random(os.environ.get("PARLAB_CHECK_SEED", secrets.token_hex(8)))


def fresh_seed() -> int:
    """A random seed, the same on all ranks, another at each call. Collective."""
    return gather(_seeds.getrandbits(32))[0]


def show_values(**values: Any) -> None:
    """Display the values of all ranks as JSON, {name: [of rank 0, of rank 1, …]}. Collective.

    For hidden checks: whoever compares them does so outside the learner's process. Values must be
    what JSON knows, and the same in every run.
    """
    from IPython.display import JSON, display

    everyone = gather(values)
    if private_communicator().rank == 0:
        display(JSON({name: [value[name] for value in everyone] for name in values}))
