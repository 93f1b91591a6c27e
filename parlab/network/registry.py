"""Registers emulated groups with torch.distributed, and renews them after ranks were freed."""

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

_whole: list[EmulatedGroup] = []  # groups of all ranks, in the order in which they were made
_parts: weakref.WeakSet[EmulatedGroup] = weakref.WeakSet()  # groups of some ranks


def emulated_group(network: Network) -> EmulatedGroup:
    """Return a new process group of all ranks, whose messages take as long as on `network`.

    Collective over all ranks. Groups of different calls do not share links. Raises ValueError if
    the network does not have as many ranks as are running.
    """
    if not dist.is_initialized():
        torch_groups.start()
    own = new_communicator()
    made = EmulatedGroup(own, Links(network, own), range(own.size))
    _whole.append(made)
    return _registered(made)


def sub_group(group: EmulatedGroup, ranks: Sequence[int]) -> Any:
    """Return a group of these `ranks`, on the links of `group`, an emulated group of all ranks.

    Collective over all ranks, like `dist.new_group`. On ranks that are not in the group, it returns
    `dist.GroupMember.NON_GROUP_MEMBER`. Raises ValueError if `group` is not a group of all ranks.
    """
    if group not in _whole:
        raise ValueError("sub_group(group, ranks): `group` must be an emulated group of all ranks")
    make = functools.partial(_part, group)
    return dist.new_group(list(ranks), backend=BACKEND, pg_options=make)


def _registered(group: EmulatedGroup) -> EmulatedGroup:
    dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu"])
    dist.new_group(backend=BACKEND, pg_options=lambda ranks: group)
    return group


def _make(options: Any, make: Callable[[list[int]], EmulatedGroup] | None) -> EmulatedGroup:
    """Make a group. torch.distributed calls this only on the ranks of the new group."""
    if make is None:
        raise ValueError("make groups on an emulated network by sub_group(group, ranks)")
    return make(list(options.global_ranks_in_group) or list(range(options.group_size)))


def _part(whole: EmulatedGroup, ranks: list[int]) -> EmulatedGroup:
    own = whole.comm.Create_group(whole.comm.group.Incl(ranks))
    part = EmulatedGroup(own, whole.links, [whole.members[rank] for rank in ranks])
    _parts.add(part)
    return part


# When ranks are freed, `give_up` is called before communicators are renewed, and `renew` afterward.


def revocable() -> Iterable[MPI.Comm]:
    """Return the communicators to revoke in addition to those of `parlab.rank.world`."""
    return [part.comm for part in list(_parts)]


def communicators() -> list[MPI.Comm]:
    """Return the communicators over all ranks that may have messages in transit between cells."""
    return [group.comm for group in _whole]


def give_up() -> None:
    """Make all incomplete operations on this rank fail."""
    for group in [*_whole, *_parts]:
        group.give_up()


def renew() -> None:
    """Start again on renewed communicators. Collective over all ranks."""
    # Some ranks may have one group fewer, if they were stopped while they made it.
    del _whole[comm.allreduce(len(_whole), op=MPI.MIN) :]
    for group in _whole:
        group.renew(Links(group.network, group.comm))


def register_again() -> None:
    """Register the groups with torch.distributed after its restart. Collective."""
    for group in _whole:
        _registered(group)


torch_groups.after_restart.append(register_again)
