"""What a kernel costs: bytes that it moves, arithmetic on each, and the roofline over both.

An operation reads its inputs from the device's memory and writes its results there, each tensor
once: what a cache saves in between is not counted. Every addition, multiplication, division,
comparison, root and exponential counts as one FLOP. The roofline is Williams et al. 2009
(doi:10.1145/1498765.1498785), programs that work on blocks are Tillet et al. 2019
(doi:10.1145/3315508.3329973).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# The unit in which a GPU of NVIDIA reads its memory, and the threads that load together.
SECTOR_BYTES, WARP = 32, 32


@dataclass(frozen=True)
class Operation:
    """One pass over memory: the tensors that it reads and writes, by name, and its arithmetic.

    `flop` is for each number of the largest tensor.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flop: int


# Each line of PyTorch is an operation; `highest` and `total` are a number a row, all else a matrix.
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
    """Bytes that operations move, and the arithmetic that they do."""

    read: float
    written: float
    flop: float

    @property
    def bytes(self) -> float:
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """FLOP for each byte that is moved."""
        return self.flop / self.bytes


def traffic(
    operations: Iterable[Operation], numbers: Mapping[str, float], element_bytes: int = 4
) -> Traffic:
    """What operations move; `numbers` says how many each of their tensors has."""
    operations = list(operations)
    return Traffic(
        element_bytes * sum(numbers[name] for of in operations for name in of.reads),
        element_bytes * sum(numbers[name] for of in operations for name in of.writes),
        sum(of.flop for of in operations) * max(numbers.values()),
    )


def softmax(
    operations: Iterable[Operation], rows: float, columns: float, element_bytes: int = 4
) -> Traffic:
    """Softmax over the rows of an (M, N) matrix: (8MN + 4M)e bytes eager, 2MNe fused."""
    operations = list(operations)
    matrices = {name for of in operations for name in of.reads + of.writes}
    numbers = dict.fromkeys(matrices, rows * columns)
    for name in matrices & {"highest", "total"}:
        numbers[name] = rows
    return traffic(operations, numbers, element_bytes)


def adam(operations: Iterable[Operation], parameters: float = 1) -> Traffic:
    """A step of Adam in float32: 72 bytes a parameter eager, 80 with weight decay, 28 fused."""
    return traffic(operations, dict.fromkeys("wgmvd", parameters))


def add(numbers: float, element_bytes: int = 4) -> Traffic:
    """x + y: two numbers read, one written, one FLOP."""
    return Traffic(2 * element_bytes * numbers, element_bytes * numbers, numbers)


def matmul(rows: float, columns: float, depth: float, element_bytes: int = 2) -> Traffic:
    """(M, K) times (K, N), each matrix moved once: the least that any kernel moves."""
    return Traffic(
        element_bytes * depth * (rows + columns),
        element_bytes * rows * columns,
        2 * rows * columns * depth,
    )


def tiled_matmul(
    rows: int, columns: int, depth: int, tile: tuple[int, int], element_bytes: int = 2
) -> Traffic:
    """The same where every tile of the result loads what it needs, with no cache in between.

    A program with a tile of (m, n) reads K numbers of each of its m rows and n columns. What lies
    beyond the edge of a matrix is masked, and not read.
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
        """The intensity in FLOP a byte from which on arithmetic is the limit."""
        return self.flop_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """FLOP a second at most: min(peak, intensity times bandwidth)."""
        return min(self.flop_per_second, intensity * self.bytes_per_second)

    def seconds(self, of: Traffic) -> float:
        """The least time that moving and computing take, when each hides behind the other."""
        return max(of.flop / self.flop_per_second, of.bytes / self.bytes_per_second)


def programs(numbers: int, block: int) -> int:
    """How many programs cover so many numbers: n/B, rounded up.

    Raises ValueError for a block that is no power of two, which Triton does not take.
    """
    if block < 1 or block & (block - 1):
        raise ValueError(f"a block has a power of two of numbers, not {block}")
    return -(-numbers // block)


def programs_at_once(registers: int, warps: int) -> int:
    """How many programs with so many registers for each thread fit on a multiprocessor.

    One of an A100 or H100 has 65,536 registers, and room for 64 warps and 32 programs; a warp gets
    registers in units of 256. Shared memory is another limit, left out.
    """
    each = -(-registers * WARP // 256) * 256 * warps
    return min(65_536 // each, 64 // warps, 32)


def sectors_touched(stride: int, element_bytes: int = 4, start: int = 0) -> list[int]:
    """The sectors of 32 bytes, by number, of which a warp needs some that loads with a stride.

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
    """How many those are."""
    return len(sectors_touched(stride, element_bytes, start))


def load_efficiency(stride: int, element_bytes: int = 4, start: int = 0) -> float:
    """The share of the bytes which those sectors have that the warp asked for."""
    requested = WARP * element_bytes if stride else element_bytes
    return requested / (SECTOR_BYTES * sectors(stride, element_bytes, start))


Span = tuple[float, float]


def staged(steps: int, load: float, compute: float, stages: int) -> tuple[list[Span], list[Span]]:
    """When each step of a loop is loaded, and when it is computed with, as (start, end).

    Each of so many buffers is loaded again as soon as it was computed with; loads in different
    buffers do not hinder each other, and computing goes step by step. In the long run a step takes
    max(compute, (load + compute)/stages). Raises ValueError without a stage.
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
    """The tiles of a result in the order in which programs take them: row by row."""
    return [(i, j) for i in range(down) for j in range(across)]


def grouped(down: int, across: int, group: int) -> list[Tile]:
    """The same in groups of so many rows, each group column by column.

    The last group has fewer rows where `group` does not divide them. One row is `row_major`.
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
    """How many bands of A and of B these tiles of the result need: distinct rows, and columns."""
    return len({i for i, _ in tiles}), len({j for _, j in tiles})


def blocks_loaded(tiles: Sequence[Tile], depth: int) -> int:
    """Blocks of A and B that must come from memory for these tiles, when each comes once."""
    return sum(bands(tiles)) * depth


def launch_bound_below(launch_seconds: float, device: Device) -> float:
    """Bytes below which a launch takes longer than the moving does."""
    return launch_seconds * device.bytes_per_second
