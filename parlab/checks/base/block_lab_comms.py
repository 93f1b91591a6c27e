"""Blocks the lab's own communicators and the default process group while a check runs.

A learner's function may communicate only over the communicator or group that it gets as an
argument. If it used the lab's `comm` instead, its messages could be received by other ranks, in
other trials, or even in the next cell. During a check, each of the lab's communicators therefore
contains the handle of MPI's null communicator, on which every call raises an error at once and
sends nothing. Afterward, the communicators get their own handles back.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mpi4py import MPI

from parlab.checks.base.collective import private_communicator


@contextmanager
def lab_communicators_refuse() -> Iterator[None]:
    """Make calls on `comm`, COMM_WORLD, and torch's default group raise errors.

    `refused_calls.refusal` recognizes these errors.
    """
    from parlab.rank.world import communicators, set_handle

    private = private_communicator()
    with ExitStack() as restored:
        for comm in communicators():
            if comm is not private:
                restored.callback(set_handle, comm, comm.handle)
                set_handle(comm, MPI.COMM_NULL.handle)
        if "torch.distributed" in sys.modules:
            from parlab.checks.base.block_default_group import default_group_refuses

            restored.enter_context(default_group_refuses())
        yield
