"""While a check runs, the lab's own communicators and the default process group refuse.

A learner's function may speak only over what it was given. Where it takes the lab's `comm`
instead, its messages would meet those of other ranks, of other trials, even of the next cell. So
the handle inside each of the lab's communicators is MPI's null communicator for that time, on
which every call raises at once; afterwards they are what they were, and nothing was sent on them.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mpi4py import MPI

from parlab.checks.base.collective import private_communicator


@contextmanager
def lab_communicators_refuse() -> Iterator[None]:
    """Within, calls on `comm`, COMM_WORLD and torch's default group raise (see `refusal`)."""
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
