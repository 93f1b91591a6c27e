"""The costs of a kernel: the bytes that it moves, its arithmetic, and the roofline model.

An operation reads its inputs from the device's memory and writes its results there, each tensor
once. Savings from a cache between operations do not count. Every addition, multiplication,
division, comparison, root, and exponential counts as one FLOP. See Williams et al. 2009
(doi:10.1145/1498765.1498785) for the roofline, and Tillet et al. 2019 (doi:10.1145/3315508.3329973)
for programs that work on blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# The unit in which NVIDIA's GPUs read memory, and the number of threads that load together.
SECTOR_BYTES, WARP = 32, 32


@dataclass(frozen=True)
class Operation:
    """One pass over memory: the names of the tensors that it reads and writes, and its arithmetic.

    `flop` is the FLOP for each number of the largest tensor.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flop: int


# Each line of PyTorch is an operation. `highest` and `total` have one number per row, and all other
# tensors are matrices.
EAGER_SOFTMAX = (
    Operation("highest = x.amax(1)", ("x",), ("highest",), 1),
    Operation("shifted = x - highest", ("x", "highest"), ("shifted",), 1),
    Operation("powers = shifted.exp()", ("shifted",), ("powers",), 1),
    Operation("total = powers.sum(1)", ("powers",), ("total",), 1),
    Operation("y = powers / total", ("powers", "total"), ("y",), 1),
)
FUSED_SOFTMAX = (Operation("softmax", ("x",), ("y",), 5),)

# torch.optim.Adam(foreach=False) in 2.13; `foreach=True` does the same to many tensors at once.
EAGER_ADAM = (
    Operation("m.lerp_(g, 1 - β₁)", ("m", "g"), ("m",), 3),
    Operation("v.mul_(β₂)", ("v",), ("v",), 1),
    Operation("v.addcmul_(g, g, 1 - β₂)", ("v", "g"), ("v",), 3),
    Operation("d = v.sqrt()", ("v",), ("d",), 1),
    Operation("d = d / √(1 - β₂ᵗ)", ("d",), ("d",), 1),
    Operation("d.add_(ε)", ("d",), ("d",), 1),
    Operation("w.addcdiv_(m, d, -η/(1 - β₁ᵗ))", ("w", "m", "d"), ("w",), 3),
)
WEIGHT_DECAY = Operation("w.mul_(1 - ηλ)", ("w",), ("w",), 1)
FUSED_ADAM = (Operation("Adam", ("w", "g", "m", "v"), ("w", "m", "v"), 13),)
assert sum(of.flop for of in EAGER_ADAM) == FUSED_ADAM[0].flop


@dataclass(frozen=True)
class Traffic:
    """The bytes that operations move, and their arithmetic."""

    read: float
    written: float
    flop: float

    @property
    def bytes(self) -> float:
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """FLOP per moved byte."""
        return self.flop / self.bytes


def traffic(
    operations: Iterable[Operation], numbers: Mapping[str, float], element_bytes: int = 4
) -> Traffic:
    """Return the traffic of operations. `numbers` maps tensors to their numbers of elements."""
    operations = list(operations)
    return Traffic(
        element_bytes * sum(numbers[name] for of in operations for name in of.reads),
        element_bytes * sum(numbers[name] for of in operations for name in of.writes),
        sum(of.flop for of in operations) * max(numbers.values()),
    )


def softmax(
    operations: Iterable[Operation], rows: float, columns: float, element_bytes: int = 4
) -> Traffic:
    """Return the traffic of a softmax of (M, N): (8MN + 4M)e bytes eager, 2MNe fused."""
    operations = list(operations)
    matrices = {name for of in operations for name in of.reads + of.writes}
    numbers = dict.fromkeys(matrices, rows * columns)
    for name in matrices & {"highest", "total"}:
        numbers[name] = rows
    return traffic(operations, numbers, element_bytes)


def adam(operations: Iterable[Operation], parameters: float = 1) -> Traffic:
    """Return the traffic of a step of Adam in float32.

    It is 72 bytes per parameter in eager mode, 80 for AdamW (decoupled weight decay), and 28 fused.
    """
    return traffic(operations, dict.fromkeys("wgmvd", parameters))


def add(numbers: float, element_bytes: int = 4) -> Traffic:
    """Return the traffic of x + y: for each number, two reads, one write, and one FLOP."""
    return Traffic(2 * element_bytes * numbers, element_bytes * numbers, numbers)


def matmul(rows: float, columns: float, depth: float, element_bytes: int = 2) -> Traffic:
    """Return the least traffic of (M, K) times (K, N), with which each matrix moves once."""
    return Traffic(
        element_bytes * depth * (rows + columns),
        element_bytes * rows * columns,
        2 * rows * columns * depth,
    )


def tiled_matmul(
    rows: int, columns: int, depth: int, tile: tuple[int, int], element_bytes: int = 2
) -> Traffic:
    """Return the traffic of a matrix product whose programs load their inputs without a cache.

    A program for an (m, n) tile of the result reads K numbers of each of its m rows and n columns.
    Numbers beyond the edge of a matrix are masked, and not read.
    """
    m, n = tile
    tiles_down, tiles_across = programs(rows, m), programs(columns, n)
    read = depth * (rows * tiles_across + columns * tiles_down)
    return Traffic(element_bytes * read, element_bytes * rows * columns, 2 * rows * columns * depth)


@dataclass(frozen=True)
class Device:
    """The two ceilings of a roofline."""

    name: str
    flop_per_second: float
    bytes_per_second: float

    @property
    def ridge(self) -> float:
        """The intensity in FLOP per byte above which arithmetic is the limit."""
        return self.flop_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """Return the largest possible FLOP per second: min(peak, intensity times bandwidth)."""
        return min(self.flop_per_second, intensity * self.bytes_per_second)

    def seconds(self, of: Traffic) -> float:
        """Return the least time, in seconds, if moving and computing fully overlap."""
        return max(of.flop / self.flop_per_second, of.bytes / self.bytes_per_second)


def programs(numbers: int, block: int) -> int:
    """Return how many programs cover n numbers in blocks of B: n/B, rounded up.

    Raises ValueError for a block that is not a power of two, as Triton requires.
    """
    if block < 1 or block & (block - 1):
        raise ValueError(f"a block has a power of two of numbers, not {block}")
    return -(-numbers // block)


def programs_at_once(registers: int, warps: int) -> int:
    """Return how many programs fit on a multiprocessor. Each thread uses `registers`.

    A multiprocessor of an A100 or H100 has 65,536 registers, and room for 64 warps and 32 programs.
    A warp gets registers in units of 256. The limit of shared memory is left out.
    """
    each = -(-registers * WARP // 256) * 256 * warps
    return min(65_536 // each, 64 // warps, 32)


def sectors_touched(stride: int, element_bytes: int = 4, start: int = 0) -> list[int]:
    """Return the numbers of the 32-byte sectors that a warp reads if it loads with a stride.

    Thread i loads number i·stride; `start` is the address of the first one, in bytes. Raises
    ValueError for a stride below 0 and for numbers without bytes.
    """
    if stride < 0 or element_bytes < 1:
        raise ValueError(f"a stride of {stride} numbers of {element_bytes} bytes")
    touched = set()
    for lane in range(WARP):
        first = start + lane * stride * element_bytes
        touched |= {first // SECTOR_BYTES, (first + element_bytes - 1) // SECTOR_BYTES}
    return sorted(touched)


def sectors(stride: int, element_bytes: int = 4, start: int = 0) -> int:
    """Return how many sectors a warp reads: see `sectors_touched`."""
    return len(sectors_touched(stride, element_bytes, start))


def load_efficiency(stride: int, element_bytes: int = 4, start: int = 0) -> float:
    """Return the share of the bytes in these sectors that the warp needs."""
    requested = WARP * element_bytes if stride else element_bytes
    return requested / (SECTOR_BYTES * sectors(stride, element_bytes, start))


Span = tuple[float, float]


def staged(steps: int, load: float, compute: float, stages: int) -> tuple[list[Span], list[Span]]:
    """Return when each step of a loop loads, and when it computes, both as (start, end).

    Each of the `stages` buffers is loaded again as soon as its computation has ended. Loads into
    different buffers overlap, and steps compute one after the other. In the long run, a step takes
    max(compute, (load + compute)/stages). Raises ValueError if `stages` is less than 1.
    """
    if stages < 1:
        raise ValueError(f"a loop has at least one stage, not {stages}")
    loads: list[Span] = []
    computes: list[Span] = []
    for step in range(steps):
        free = computes[step - stages][1] if step >= stages else 0.0
        loads.append((free, free + load))
        begin = max(loads[-1][1], computes[-1][1] if computes else 0.0)
        computes.append((begin, begin + compute))
    return loads, computes


Tile = tuple[int, int]


def row_major(down: int, across: int) -> list[Tile]:
    """Return the tiles of a result in the order of the programs: row by row."""
    return [(i, j) for i in range(down) for j in range(across)]


def grouped(down: int, across: int, group: int) -> list[Tile]:
    """Return the tiles in groups of `group` rows, each group column by column.

    The last group has fewer rows if `group` does not divide them. With `group` 1, the order is the
    same as in `row_major`.
    """
    if group < 1:
        raise ValueError(f"a group has at least one row, not {group}")
    return [
        (i, j)
        for first in range(0, down, group)
        for j in range(across)
        for i in range(first, min(first + group, down))
    ]


def bands(tiles: Sequence[Tile]) -> tuple[int, int]:
    """Return how many bands of A (distinct rows) and of B (distinct columns) these tiles need."""
    return len({i for i, _ in tiles}), len({j for _, j in tiles})


def blocks_loaded(tiles: Sequence[Tile], depth: int) -> int:
    """Return how many blocks of A and B these tiles need. Each block is loaded once."""
    return sum(bands(tiles)) * depth


def launch_bound_below(launch_seconds: float, device: Device) -> float:
    """Return the number of bytes below which a launch takes longer than moving the bytes."""
    return launch_seconds * device.bytes_per_second
