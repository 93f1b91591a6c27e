"""Groups of ranks, and the state that all objects of one communicator share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mpi4py._values import CONGRUENT, IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL


class Group:
    """An ordered set of ranks of the page."""

    def __init__(self, members: Sequence[int] = (), rank: int = UNDEFINED) -> None:
        self._members, self._own = list(members), rank

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def rank(self) -> int:
        return self._members.index(self._own) if self._own in self._members else UNDEFINED

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return self.rank

    def Free(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._members == other._members

    __hash__ = None  # type: ignore[assignment]

    def _with(self, members: Sequence[int]) -> "Group":
        return Group(members, self._own)

    def Incl(self, ranks: Sequence[int]) -> "Group":
        return self._with([self._members[r] for r in ranks])

    def Excl(self, ranks: Sequence[int]) -> "Group":
        out = {self._members[r] for r in ranks}
        return self._with([one for one in self._members if one not in out])

    def _ranges(self, ranks: Sequence[Sequence[int]]) -> list[int]:
        return [
            r
            for first, last, step in ranks
            for r in range(first, last + (1 if step > 0 else -1), step)
        ]

    def Range_incl(self, ranks: Sequence[Sequence[int]]) -> "Group":
        return self.Incl(self._ranges(ranks))

    def Range_excl(self, ranks: Sequence[Sequence[int]]) -> "Group":
        return self.Excl(self._ranges(ranks))

    @classmethod
    def Union(cls, one: "Group", other: "Group") -> "Group":
        return one._with([*one._members, *(m for m in other._members if m not in one._members)])

    @classmethod
    def Intersection(cls, one: "Group", other: "Group") -> "Group":
        return one._with([m for m in one._members if m in other._members])

    @classmethod
    def Difference(cls, one: "Group", other: "Group") -> "Group":
        return one._with([m for m in one._members if m not in other._members])

    def Translate_ranks(
        self, ranks: Sequence[int] | None = None, group: "Group | None" = None
    ) -> list[int]:
        assert group is not None
        places = {member: rank for rank, member in enumerate(group._members)}
        ranks = range(self.size) if ranks is None else ranks
        return [r if r == PROC_NULL else places.get(self._members[r], UNDEFINED) for r in ranks]

    @classmethod
    def Compare(cls, one: "Group", other: "Group") -> int:
        if one._members == other._members:
            return IDENT
        return SIMILAR if sorted(one._members) == sorted(other._members) else UNEQUAL


@dataclass
class Shared:
    """The state that all Python objects of a communicator share.

    Attributes:
        context: marks its messages in the hub. The next number marks messages of its collectives.
        members: its ranks, by their numbers in the page. `own` is the number of this rank.
        collectives: the number of collectives called so far.
        topology: its grid, if it has one: (dims, periods).
    """

    context: int
    members: list[int]
    own: int
    name: str = ""
    collectives: int = 0
    revoked: bool = False
    topology: tuple[list[int], list[bool]] | None = None
    attributes: dict[int, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.members.index(self.own)

    def number(self, member: int) -> int:
        """Return the rank here of a rank of the page. Special values, below 0, do not change."""
        return self.members.index(member) if member >= 0 else member


def compare(one: Shared, other: Shared) -> int:
    """Return the similarity of two communicators, as MPI defines it."""
    if one is other:
        return IDENT
    same = Group.Compare(Group(one.members), Group(other.members))
    return CONGRUENT if same == IDENT else same
