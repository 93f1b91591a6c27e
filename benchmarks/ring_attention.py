"""Lab 09's ring attention on an emulated network, against the shortest possible time.

Ours is the measured time of a forward pass without a mask. The peer is a bound that no ring can
beat: max(N·c, (N − 1)·m + c), for N ranks that each need the time c to compute a block and the time
m to send one (`parlab.costs.all_to_all.ring_seconds`). If nothing overlapped, a pass would take
N·c + (N − 1)·m.

Ranks sleep for the rest of the time c after the real computation of a block, so four of them can
compute at the same time on fewer cores. PyTorch's ring attention, `context_parallel`, has no kernel
for CPUs, so it is no peer here.
"""

import functools
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 50e-3  # c in seconds; long, because a busy machine adds a millisecond or two to a step
SHAPE = (1, 64, 4, 16)  # batch, tokens of a rank, heads, head size


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("09_all_to_all")


def slow_attend(q: "Tensor", k: "Tensor", v: "Tensor", visible: None) -> tuple["Tensor", "Tensor"]:
    """Compute a block in BLOCK seconds."""
    from parlab.block_attention import attend
    from parlab.network.clock import now, sleep_until

    end = now() + BLOCK
    result = attend(q, k, v, visible)
    sleep_until(end)
    return result


def _forward(message: float) -> Pair:
    """Return a forward pass in which a message takes `message` times as long as a block."""
    import torch

    from parlab.costs.all_to_all import ring_seconds
    from parlab.network import Link, Network, emulated_group
    from parlab.rank import rank, world_size

    tokens = torch.randn(world_size, 3, *SHAPE, generator=torch.Generator().manual_seed(0))
    q, k, v = tokens[rank]
    link = Link.of(0, 2 * k.nbytes / (message * BLOCK))
    group = emulated_group(Network(world_size, 1, inside=link, between=link))

    def forward() -> "Tensor":
        return lab()["ring_attention"](q, k, v, None, group, slow_attend)

    queries, keys, values = (x.transpose(1, 2) for x in (q, *tokens[:, 1:].transpose(0, 1)))
    keys, values = (x.transpose(1, 2).transpose(0, 1).flatten(1, 2) for x in (keys, values))
    right = torch.nn.functional.scaled_dot_product_attention(
        queries, keys.transpose(1, 2), values.transpose(1, 2)
    )
    assert torch.allclose(forward(), right.transpose(1, 2), atol=1e-5), "a wrong output"
    bound = ring_seconds(world_size, BLOCK, message * BLOCK)
    return Pair(forward, lambda: bound)


def _register(name: str, message: float) -> None:
    def set_up() -> Pair:
        return _forward(message)

    set_up.__name__ = f"emulated_ring_attention_{name}"
    benchmark(
        peer="the bound max(N·c, (N − 1)·m + c)",
        work=f"emulated forward pass of ring attention, 4 ranks, {1e3 * BLOCK:.0f} ms for a block "
        f"and {1e3 * message * BLOCK:.0f} ms for a message",
        target=1.05,
        ranks=4,
        rounds=20,
    )(set_up)


for _name, _message in {"fast": 0.5, "equal": 1.0, "slow": 2.0}.items():
    _register(_name, _message)
