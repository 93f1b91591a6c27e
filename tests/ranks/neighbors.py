"""The neighbors of a rank, on a ring of all ranks."""

from tests.support.on_ranks import World


def ring(world: World) -> tuple[int, int]:
    """Return the ranks after and before this one."""
    return (world.rank + 1) % world.size, (world.rank - 1) % world.size
