"""Makes the ranks usable again after a release: run on all of them by the kernel."""

import sys

from mpi4py import MPI

from parlab.rank import release, world


def recover(namespace: dict[str, object]) -> dict[str, object]:
    """Renew communicators and process groups. Collective over all ranks.

    Returns `lost`: names in `namespace` whose communicator ended with the release (made by the
    lab from `comm`, so only the lab knows how to make it again), and `torch`: whether
    torch.distributed was started anew.
    """
    world.renew()
    release.prepare()
    groups = sys.modules.get("parlab.rank.torch_groups")
    # Ranks agree before they decide: one may have been stopped before it came to import it.
    everywhere = world.comm.allreduce(int(groups is not None), op=MPI.MIN)
    torch_is_new = bool(groups.renew()) if groups and everywhere else False
    lost = [
        name
        for name, comm in release.communicators_of(namespace).items()
        if comm != MPI.COMM_NULL and comm.Is_revoked()
    ]
    return {"lost": sorted(lost), "torch": torch_is_new}
