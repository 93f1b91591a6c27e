"""Makes the ranks usable again after they were freed. The kernel calls this on all ranks."""

import sys

from mpi4py import MPI

from parlab.rank import world
from parlab.rank.engine import ended, freeing


def recover(
    namespace: dict[str, object], generation: int, messages_only: bool = False
) -> dict[str, object]:
    """Renew communicators and process groups. Collective over all ranks.

    Args:
        namespace: the variables of the cells.
        generation: the number that requests to free this rank will have from now on.
        messages_only: True if nothing was revoked. Groups on an emulated network are then kept.

    Returns:
        A dict. `lost` lists the names in `namespace` of communicators that were revoked since the
        last call. The lab made them from `comm`, so only the lab can make them again. `torch` is
        True if torch.distributed was restarted. `old` lists the names that use earlier groups.
    """
    freeing.set_generation(generation)
    emulated = sys.modules.get("parlab.network.registry")
    if messages_only:
        world.renew(kept=emulated.communicators() if emulated else ())
    else:
        if emulated:
            emulated.give_up()
        world.renew()
    freeing.prepare()
    groups = sys.modules.get("parlab.rank.torch_groups")
    # Ranks must agree, because one may have been stopped before it imported these modules.
    if not messages_only and world.comm.allreduce(int(emulated is not None), op=MPI.MIN):
        emulated.renew()
    everywhere = world.comm.allreduce(int(groups is not None), op=MPI.MIN)
    torch_is_new = bool(groups.renew()) if groups and everywhere else False
    old = ended.on_old_groups(namespace) if torch_is_new else []
    return {"lost": ended.revoked(namespace), "torch": torch_is_new, "old": old}
