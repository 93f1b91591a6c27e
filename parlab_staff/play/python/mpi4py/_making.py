"""Methods that create communicators, and grids of ranks."""

from collections.abc import Sequence
from typing import Any

import _hub
from mpi4py._collectives import Collectives
from mpi4py._comm import Messages
from mpi4py._exchange import plans
from mpi4py._groups import Group, Shared
from mpi4py._identity import handle_of
from mpi4py._operations import wait
from mpi4py._values import ERR_ARG, ERR_DIMS, ERR_RANK, PROC_NULL, UNDEFINED, Exception


def _null() -> Any:
    """Return a communicator that is equal to COMM_NULL."""
    return Intracomm()


def _made(shared: Shared) -> Any:
    return Messages.fromhandle(handle_of(shared))


class Comm(Collectives):
    """A communicator."""

    def _agree(self, own: Any) -> list[Any]:
        """Return the values of all ranks, for a call that the page shows as `Split`."""
        call = plans["allgather"](self, "Split", own)
        call.bytes = 0  # the program passes no data
        return wait(call).value

    def Split(self, color: int = 0, key: int = 0) -> Any:
        if color < 0 and color != UNDEFINED:
            raise Exception(ERR_ARG)
        shared = self._get()
        # The first rank reserves numbers for the largest possible number of communicators.
        contexts = [_hub.new_context() for _ in shared.members] if shared.rank == 0 else None
        everyone = self._agree((color, key, shared.rank, contexts))
        colors = sorted({entry[0] for entry in everyone} - {UNDEFINED})
        if color == UNDEFINED:
            return _null()
        chosen = sorted((entry[1], entry[2]) for entry in everyone if entry[0] == color)
        members = [shared.members[rank] for _, rank in chosen]
        return _made(Shared(everyone[0][3][colors.index(color)], members, shared.own))

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Any:
        return Comm.Split(self, UNDEFINED if split_type == UNDEFINED else 0, key)

    def Dup(self, info: Any = None) -> Any:
        shared = self._get()
        made = Comm.Split(self, 0, shared.rank)
        made._get().topology = shared.topology
        return Messages.fromhandle(made.handle)

    Clone = Dup

    def Dup_with_info(self, info: Any) -> Any:
        return Comm.Dup(self)

    def Create(self, group: Group) -> Any:
        own = self._get().own
        inside = own in group._members
        return Comm.Split(
            self, 0 if inside else UNDEFINED, group._members.index(own) if inside else 0
        )


class Intracomm(Comm):
    """A communicator of one group of ranks."""

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Create a communicator of the ranks in `group`. Only these ranks call it."""
        shared = self._get()
        if shared.own not in group._members:
            return _null()
        number = 2**28 + tag  # a tag that no collective has
        first, *others = group._members
        context = None
        hidden = _made(Shared(shared.context + 1, shared.members, shared.own))
        if shared.own == first:
            context = _hub.new_context()
            for member in others:
                Messages.send(hidden, context, shared.number(member), number)
        else:
            context = Messages.recv(hidden, None, shared.number(first), number)
        return _made(Shared(context, list(group._members), shared.own))

    def Create_cart(self, dims: Sequence[int], periods: Any = None, reorder: bool = False) -> Any:
        dims = [dims] if isinstance(dims, int) else list(dims)
        periods = [False] * len(dims) if periods is None else periods
        periods = (
            [bool(periods)] * len(dims)
            if isinstance(periods, bool | int)
            else [bool(p) for p in periods]
        )
        size = _product(dims)
        if any(n < 1 for n in dims) or size > len(self._get().members):
            raise Exception(ERR_DIMS)
        rank = self._get().rank
        made = Comm.Split(self, 0 if rank < size else UNDEFINED, rank)
        if not made:
            return made
        made._get().topology = dims, periods
        return Messages.fromhandle(made.handle)


def _product(numbers: Sequence[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


class Topocomm(Intracomm):
    """A communicator whose ranks have neighbors."""


class Cartcomm(Topocomm):
    """A communicator whose ranks form a grid, the last dimension varying fastest."""

    def _grid(self) -> tuple[list[int], list[bool]]:
        topology = self._get().topology
        assert topology is not None
        return topology

    dims = property(lambda self: self._grid()[0])
    periods = property(lambda self: self._grid()[1])
    ndim = dim = property(lambda self: len(self._grid()[0]))
    coords = property(lambda self: Cartcomm.Get_coords(self, self._get().rank))
    topo = property(lambda self: self.Get_topo())

    def Get_dim(self) -> int:
        return len(self._grid()[0])

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        dims, periods = self._grid()
        return dims, [int(p) for p in periods], self.coords

    def Get_coords(self, rank: int) -> list[int]:
        dims, _ = self._grid()
        if not 0 <= rank < _product(dims):
            raise Exception(ERR_RANK)
        coords = []
        for n in reversed(dims):
            rank, place = divmod(rank, n)
            coords.append(place)
        return coords[::-1]

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        dims, periods = self._grid()
        rank = 0
        for place, n, periodic in zip(coords, dims, periods, strict=True):
            if not periodic and not 0 <= place < n:
                raise Exception(ERR_ARG)
            rank = rank * n + place % n
        return rank

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        dims, periods = self._grid()
        if not 0 <= direction < len(dims):
            raise Exception(ERR_DIMS)

        def neighbor(step: int) -> int:
            coords = self.coords
            coords[direction] += step
            inside = periods[direction] or 0 <= coords[direction] < dims[direction]
            return Cartcomm.Get_cart_rank(self, coords) if inside else PROC_NULL

        return neighbor(-disp), neighbor(disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        dims, periods = self._grid()
        keep = [bool(k) for k in remain_dims]
        coords = self.coords
        color = 0
        for place, n, kept in zip(coords, dims, keep, strict=True):
            color = color if kept else color * n + place
        made = Comm.Split(self, color, self._get().rank)
        made._get().topology = (
            [n for n, kept in zip(dims, keep, strict=True) if kept],
            [p for p, kept in zip(periods, keep, strict=True) if kept],
        )
        return Messages.fromhandle(made.handle)


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return dimensions of a grid of `nnodes` ranks, as equal as possible."""
    dims = [0] * dims if isinstance(dims, int) else list(dims)
    free = [i for i, n in enumerate(dims) if n == 0]
    left, rest = divmod(nnodes, _product([n for n in dims if n]))
    if rest:
        raise Exception(ERR_DIMS)
    for place, n in zip(free, sorted(_balanced(left, len(free)), reverse=True), strict=True):
        dims[place] = n
    return dims


def _balanced(number: int, count: int) -> list[int]:
    if count <= 1:
        return [number] * count
    first = max(n for n in range(1, number + 1) if number % n == 0 and n**count <= number)
    return [first, *_balanced(number // first, count - 1)]
