"""Finds the lab's variables that hold communicators or torch groups which have ended."""

import sys
from collections.abc import Callable, Iterator, Mapping

from mpi4py import MPI

from parlab.rank.engine.freeing import within

_reported: list[MPI.Comm] = []  # revoked communicators that were already reported to the learner


def revoked(namespace: Mapping[str, object]) -> list[str]:
    """Return the names of variables with communicators that were revoked since the last call."""
    found = [
        (name, part)
        for name, value in _of_lab(namespace)
        for part in within(value)
        if isinstance(part, MPI.Comm)
        and part != MPI.COMM_NULL
        and part.Is_revoked()
        and not any(part is old for old in _reported)
    ]
    _reported.extend(comm for _, comm in found)
    return sorted({name for name, _ in found})


def on_old_groups(namespace: Mapping[str, object]) -> list[str]:
    """Return the names of variables that use torch groups from before the last restart."""
    is_old = _test_of_groups()
    return sorted(name for name, value in _of_lab(namespace) if any(map(is_old, within(value))))


def _test_of_groups() -> Callable[[object], bool]:
    from torch.distributed import ProcessGroup, distributed_c10d

    existing = distributed_c10d._world.pg_map
    # Look only at what the lab has imported, because these imports take long.
    modules = (
        ("torch.distributed.device_mesh", "DeviceMesh"),
        ("torch.distributed.tensor", "DTensor"),
    )
    bound = tuple(getattr(sys.modules[m], name) for m, name in modules if m in sys.modules)

    def is_old(part: object) -> bool:
        kind = type(part)
        return issubclass(kind, bound) or (issubclass(kind, ProcessGroup) and part not in existing)

    return is_old


def _of_lab(namespace: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the lab's variables, but not the last results, which IPython calls `_` and `_5`."""
    return ((name, value) for name, value in namespace.items() if not name.startswith("_"))
