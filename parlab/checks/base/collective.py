"""Lets the ranks of a check agree, over a communicator that no learner's message can disturb.

The check itself would hang if ranks disagreed on how it continues. They exchange everything through
`gather`. If one rank's part of the check raises an error, that rank sends the error there, and all
ranks stop at the same place with the same text.
"""

import itertools
import os
import pickle
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from parlab.checks.base.pickling import packed

# The longer a rank waits, the less often it polls. It then takes hardly any CPU time from others.
LEAST_POLL_SECONDS, MOST_POLL_SECONDS = 0.0002, 0.002

# The first message to all ranks has this size. Most values fit into it and need no second message.
HEAD_BYTES = 4096
_LENGTH_BYTES = 8

# Interrupted requests. They keep their memory alive, because MPI may still write to it.
_under_way: list[MPI.Request] = []

_private: MPI.Intracomm | None = None


class OtherRankBroke(Exception):
    """The check itself raised an error on some ranks; `broken` has the errors' texts by rank."""

    def __init__(self, broken: dict[int, str]) -> None:
        super().__init__(broken)
        self.broken = broken


@dataclass(frozen=True)
class _Broken:
    text: str


def private_communicator() -> MPI.Intracomm:
    """Return the checks' own communicator over all ranks. The first call is collective."""
    global _private
    if _private is None:
        from parlab.rank.world import new_communicator

        _private = new_communicator()
    return _private


@contextmanager
def alone(own: MPI.Intracomm) -> Iterator[None]:
    """Run collective functions on this rank alone. `own` is a communicator with only this rank."""
    global _private
    everyone, _private = private_communicator(), own
    try:
        yield
    finally:
        _private = everyone


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, on every rank. Collective.

    Ranks sleep while they wait for others: with more ranks than cores, spinning would slow down the
    ranks that still compute.

    Raises:
        OtherRankBroke: on all ranks, if one of them called `tell_broken` instead.
    """
    everyone = [pickle.loads(one) for one in _exchanged(packed(value))]
    broken = {rank: v.text for rank, v in enumerate(everyone) if isinstance(v, _Broken)}
    if broken:
        raise OtherRankBroke(broken)
    return everyone


def _exchanged(own: bytes) -> list[bytes]:
    comm = private_communicator()
    head = (len(own).to_bytes(_LENGTH_BYTES, "big") + own)[:HEAD_BYTES].ljust(HEAD_BYTES)
    heads = bytearray(comm.size * HEAD_BYTES)
    _wait(comm.Iallgather(head, heads))
    parts = [heads[start : start + HEAD_BYTES] for start in range(0, len(heads), HEAD_BYTES)]
    lengths = [int.from_bytes(part[:_LENGTH_BYTES], "big") for part in parts]
    room = HEAD_BYTES - _LENGTH_BYTES
    rest = [max(length - room, 0) for length in lengths]
    tails = bytearray(sum(rest))
    if tails:
        _wait(comm.Iallgatherv(own[room:], (tails, rest)))
    ends = list(itertools.accumulate(rest))
    return [
        bytes(part[_LENGTH_BYTES:][:length]) + tails[end - more : end]
        for part, length, more, end in zip(parts, lengths, rest, ends, strict=True)
    ]


def _wait(request: MPI.Request) -> None:
    began = time.perf_counter()
    try:
        while not request.Test():
            waited = time.perf_counter() - began
            time.sleep(min(max(waited / 16, LEAST_POLL_SECONDS), MOST_POLL_SECONDS))
    except BaseException:
        _under_way.append(request)
        raise


def tell_broken(text: str) -> None:
    """Raise OtherRankBroke on every rank, because this rank's check raised `text`. Collective."""
    gather(_Broken(text))


# Tests of messages set the seed: for some mistakes, several messages are true, and the random
# inputs decide which one comes first.
_seeds = random.Random(os.environ.get("PARLAB_CHECK_SEED", secrets.token_hex(8)))


def fresh_seed() -> int:
    """Return a random seed: the same on all ranks, and a new one for each call. Collective."""
    return gather(_seeds.getrandbits(32))[0]


def show_values(**values: Any) -> None:
    """Display the values of all ranks as JSON, {name: [of rank 0, of rank 1, …]}. Collective.

    Hidden checks use this, and the grader compares the values outside the learner's process. They
    must be valid in JSON, and the same in every run.
    """
    from IPython.display import JSON, display

    everyone = gather(values)
    if private_communicator().rank == 0:
        display(JSON({name: [value[name] for value in everyone] for name in values}))
