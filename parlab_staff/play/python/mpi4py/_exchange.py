"""The base of all collectives: each rank sends its part directly to all ranks that need it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py._comm import Messages
from mpi4py._operations import Exchange, Operation, progress
from mpi4py._values import ERR_ROOT, Exception

_TAGS = 64  # more than there are collectives
# One function for each collective, by its name. It starts the collective.
plans: dict[str, Callable[..., Operation]] = {}


def plan(function: Callable[..., Operation]) -> Callable[..., Operation]:
    """Decorate the function `_NAME` that starts the collective NAME."""
    plans[function.__name__[1:]] = function
    return function


class Call:
    """One collective call on one rank, for the plans."""

    def __init__(self, comm: Messages, api: str, kind: str, root: int | None = None) -> None:
        self.shared = Messages._get(comm)
        progress()
        self.api, self.kind = api, list(plans).index(kind)
        self.rank, self.size = self.shared.rank, len(self.shared.members)
        if root is not None and not 0 <= root < self.size:
            raise Exception(ERR_ROOT)
        self.root = root
        self.others = [rank for rank in range(self.size) if rank != self.rank]

    def exchange(
        self,
        sends: dict[int, np.ndarray],
        receives: dict[int, np.ndarray | None],
        finish: Callable[[dict[int, np.ndarray]], Any],
        own_bytes: int = 0,
    ) -> Exchange:
        """Start the exchange. Ranks are numbered as in the communicator."""
        shared = self.shared
        shared.collectives += 1
        members = shared.members
        return Exchange(
            self.api,
            shared.context + 1,
            -1 if self.root is None else members[self.root],
            # If ranks call different collectives, they wait, and the hub finds a deadlock.
            shared.collectives * _TAGS + self.kind,
            (shared.context << 16) + shared.collectives,
            {members[rank]: data for rank, data in sends.items()},
            {members[rank]: into for rank, into in receives.items()},
            lambda came: finish({shared.number(member): data for member, data in came.items()}),
            own_bytes,
        )
