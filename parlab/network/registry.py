"""Makes emulated groups known to torch.distributed, and renews them when ranks were freed."""

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from parlab.costs.networks import Network
from parlab.network.group import BACKEND, EmulatedGroup
from parlab.network.links import Links
from parlab.rank import torch_groups
from parlab.rank.world import comm, new_communicator

_whole: list[EmulatedGroup] = []  # over all ranks, in the order in which they were made
_parts: weakref.WeakSet[EmulatedGroup] = weakref.WeakSet()


def emulated_group(network: Network) -> EmulatedGroup:
    """A new process group over all ranks, whose messages take as long as on `network`.

    Collective over all ranks. Each call makes a network of its own, whose links nobody else uses.
    Raises ValueError where the network has not as many ranks as are running.
    """
    if not dist.is_initialized():
        torch_groups.start()
    own = new_communicator()
    made = EmulatedGroup(own, Links(network, own), range(own.size))
    _whole.append(made)
    return _known(made)


def sub_group(group: EmulatedGroup, ranks: Sequence[int]) -> Any:
    """A group of some of the `ranks` of an emulated group that is over all, on the same links.

    Collective over all ranks, as `dist.new_group` is. On ranks that are not in it, returns
    `dist.GroupMember.NON_GROUP_MEMBER`. Raises ValueError where `group` is not over all ranks.
    """
    if group not in _whole:
        raise ValueError("sub_group(group, ranks): group is an emulated group over all ranks")
    make = functools.partial(_part, group)
    return dist.new_group(list(ranks), backend=BACKEND, pg_options=make)


def _known(group: EmulatedGroup) -> EmulatedGroup:
    dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu"])
    dist.new_group(backend=BACKEND, pg_options=lambda ranks: group)
    return group


def _make(options: Any, make: Callable[[list[int]], EmulatedGroup] | None) -> EmulatedGroup:
    """Called by torch.distributed on the ranks of the new group, and on no others."""
    if make is None:
        raise ValueError("make groups on an emulated network by sub_group(group, ranks)")
    return make(list(options.global_ranks_in_group) or list(range(options.group_size)))


def _part(whole: EmulatedGroup, ranks: list[int]) -> EmulatedGroup:
    own = whole.comm.Create_group(whole.comm.group.Incl(ranks))
    part = EmulatedGroup(own, whole.links, [whole.members[rank] for rank in ranks])
    _parts.add(part)
    return part


# When ranks are freed: `give_up` before the communicators are renewed, `renew` after.


def revocable() -> Iterable[MPI.Comm]:
    """Communicators that are to be revoked with those of `parlab.rank.world`."""
    return [part.comm for part in list(_parts)]


def communicators() -> list[MPI.Comm]:
    """Communicators over all ranks whose messages may be under way between cells."""
    return [group.comm for group in _whole]


def give_up() -> None:
    """Fail what is under way on this rank."""
    for group in [*_whole, *_parts]:
        group.give_up()


def renew() -> None:
    """Begin again on renewed communicators. Collective over all ranks."""
    # A rank that was stopped while it made one has one less.
    del _whole[comm.allreduce(len(_whole), op=MPI.MIN) :]
    for group in _whole:
        group.renew(Links(group.network, group.comm))


def register_again() -> None:
    """Register the groups with torch.distributed after its restart. Collective."""
    for group in _whole:
        _known(group)


torch_groups.after_restart.append(register_again)
