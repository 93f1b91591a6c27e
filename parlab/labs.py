"""Which lab a word means."""

from collections.abc import Sequence
from pathlib import Path


def meant(lab: str, known: Sequence[str]) -> str:
    """The lab of `known` (`01_mpi`, …) that `01_mpi`, `mpi`, `01`, or a path of one means.

    Raises ValueError for a word that means none.
    """
    stem = Path(lab).stem
    for name in known:
        if stem in (name, name[:2], name[3:]):
            return name
    raise ValueError(f"there is no lab {lab!r}; the labs are: {', '.join(known) or 'none here'}")
