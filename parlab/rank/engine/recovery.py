"""Makes the ranks usable again after they were freed: run on all of them by the kernel."""

import sys

from mpi4py import MPI

from parlab.rank import world
from parlab.rank.engine import freeing

_reported: list[MPI.Comm] = []  # communicators that ended, and of which the learner knows


def recover(
    namespace: dict[str, object], generation: int, messages_only: bool = False
) -> dict[str, object]:
    """Renew communicators and process groups. Collective over all ranks.

    `generation` is the number that requests to free this rank carry from here on. With
    `messages_only`, nothing was revoked: groups on an emulated network stay as they are.
    Returns `lost`: names in `namespace` whose communicator was revoked since the last time (made by
    the lab from `comm`, so only the lab knows how to make it again), and `torch`: whether
    torch.distributed was started anew.
    """
    freeing.begin(generation)
    emulated = sys.modules.get("parlab.network.registry")
    if messages_only:
        world.renew(kept=emulated.communicators() if emulated else ())
    else:
        if emulated:
            emulated.give_up()
        world.renew()
    freeing.prepare()
    groups = sys.modules.get("parlab.rank.torch_groups")
    # Ranks agree before they decide: one may have been stopped before it came to import them.
    if not messages_only and world.comm.allreduce(int(emulated is not None), op=MPI.MIN):
        emulated.renew()
    everywhere = world.comm.allreduce(int(groups is not None), op=MPI.MIN)
    torch_is_new = bool(groups.renew()) if groups and everywhere else False
    lost = [
        (name, comm)
        for name, comm in freeing.communicators_of(namespace)
        if comm != MPI.COMM_NULL and comm.Is_revoked() and not any(comm is old for old in _reported)
    ]
    _reported.extend(comm for _, comm in lost)
    return {"lost": sorted({name for name, _ in lost}), "torch": torch_is_new}
