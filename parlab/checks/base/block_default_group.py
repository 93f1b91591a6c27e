"""Blocks the default process group of torch.distributed while a check runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from parlab.checks.base.late_group import COLLECTIVES, OLD_NAMES
from parlab.checks.base.refused_calls import REFUSED


class _Refusing(dist.ProcessGroup):
    """A group with the default group's rank and size, whose operations all raise an error."""


def _refuse(self: _Refusing, *arguments: Any) -> None:
    raise RuntimeError(REFUSED)


for _name in (*COLLECTIVES, *OLD_NAMES, "send", "recv", "recv_anysource", "monitored_barrier"):
    setattr(_Refusing, _name, _refuse)


@contextmanager
def default_group_refuses() -> Iterator[None]:
    """Make operations on torch's default group raise RuntimeError. Its rank and size still work."""
    world = distributed_c10d._world
    default = world.default_pg
    if default is None:
        yield
        return
    refusing = _Refusing(default.rank(), default.size())
    for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
        if default in table:
            table[refusing] = table[default]
    world.default_pg = refusing
    try:
        yield
    finally:
        world.default_pg = default
        for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
            table.pop(refusing, None)
