"""Records the two ceilings of a CPU, and a few operations below them, for chapter 07.

    python -m benchmarks.recordings.rooflines

It writes `book/measurements/rooflines.json`: the times of PyTorch's operations on one thread, and
their highest rates of bytes and of arithmetic. A time is the least CPU time of many runs, so that
other work on the machine has little effect. Vectors are larger than the cache, and all results are
written to existing tensors.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import date

import torch

from benchmarks import machine
from parlab.costs import kernels as costs
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.rooflines"
FILE = ROOT / "book" / "measurements" / "rooflines.json"
NUMBERS = 2**25  # 134 MB of float32
ROWS, COLUMNS = 2**13, 2**12
PRODUCTS = (16, 64, 256, 1024)
SECONDS = 10.0  # for each operation


def least_seconds(run: Callable[[], object]) -> float:
    """Return the CPU time of the fastest run, among at least ten in `SECONDS`."""
    run()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 10 or time.perf_counter() < end:
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


def scaling() -> Callable[[], object]:
    """Scale in place. A separate result would be read before writing, which is not counted."""
    x = torch.rand(NUMBERS)
    return lambda: x.mul_(-1.0)


def adding() -> Callable[[], object]:
    x, y, out = (torch.rand(NUMBERS) for _ in range(3))
    return lambda: torch.add(x, y, out=out)


def eager_softmax() -> Callable[[], object]:
    """Return a function with the five operations of `costs.EAGER_SOFTMAX`."""
    x, shifted, powers, y = (torch.rand(ROWS, COLUMNS) for _ in range(4))
    highest, total = torch.rand(ROWS, 1), torch.rand(ROWS, 1)

    def run() -> None:
        torch.amax(x, 1, keepdim=True, out=highest)
        torch.sub(x, highest, out=shifted)
        torch.exp(shifted, out=powers)
        torch.sum(powers, 1, keepdim=True, out=total)
        torch.div(powers, total, out=y)

    return run


def fused_softmax() -> Callable[[], object]:
    x, y = torch.rand(ROWS, COLUMNS), torch.rand(ROWS, COLUMNS)
    return lambda: torch.softmax(x, 1, out=y)


def eager_adam() -> Callable[[], object]:
    """Return a function with the seven operations of `costs.EAGER_ADAM`."""
    w, g, m, v, d = (torch.rand(NUMBERS) for _ in range(5))

    def run() -> None:
        m.lerp_(g, 0.1)
        v.mul_(0.999)
        v.addcmul_(g, g, value=0.001)
        torch.sqrt(v, out=d)
        d.div_(0.5)
        d.add_(1e-8)
        w.addcdiv_(m, d, value=-1e-3)

    return run


def fused_adam() -> Callable[[], object]:
    weight = torch.nn.Parameter(torch.rand(NUMBERS))
    weight.grad = torch.rand(NUMBERS)
    return torch.optim.Adam([weight], fused=True).step


def product(n: int) -> float:
    """Return the seconds of an n × n product. If it is small, time many products in a row."""
    a, b, out = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    repeats = max(1, 2**22 // n**3)

    def run() -> None:
        for _ in range(repeats):
            torch.mm(a, b, out=out)

    return least_seconds(run) / repeats


OPERATIONS = {
    "−x, in place": (costs.Traffic(4 * NUMBERS, 4 * NUMBERS, NUMBERS), scaling),
    "x + y": (costs.add(NUMBERS), adding),
    "softmax, eager": (costs.softmax(costs.EAGER_SOFTMAX, ROWS, COLUMNS), eager_softmax),
    "softmax, fused": (costs.softmax(costs.FUSED_SOFTMAX, ROWS, COLUMNS), fused_softmax),
    "Adam, eager": (costs.adam(costs.EAGER_ADAM, NUMBERS), eager_adam),
    "Adam, fused": (costs.adam(costs.FUSED_ADAM, NUMBERS), fused_adam),
}


def measured() -> dict[str, dict[str, float]]:
    """Return the counted traffic and the least time, by name."""
    found = {name: (of, least_seconds(make())) for name, (of, make) in OPERATIONS.items()}
    for n in PRODUCTS:
        found[f"product, {n}"] = costs.matmul(n, n, n, element_bytes=4), product(n)
    return {
        name: {"read": of.read, "written": of.written, "flop": of.flop, "seconds": seconds}
        for name, (of, seconds) in found.items()
    }


def rate(of: dict[str, float]) -> float:
    """Return bytes per second."""
    return (of["read"] + of["written"]) / of["seconds"]


def main() -> int:
    """Measure, and write the file."""
    torch.set_num_threads(1)
    found = measured()
    record = {
        "what": f"one thread, float32: the least processor time of operations on {NUMBERS:,} "
        f"numbers (softmax: {ROWS:,} × {COLUMNS:,}) and of products of n × n, with the bytes and "
        "FLOP that parlab.costs.kernels counts; and the highest rates among them",
        "machine": machine.description(),
        "date": date.today().isoformat(),
        "command": COMMAND,
        "quiet": not machine.disturbances(),
        "bytes_per_second": max(map(rate, found.values())),
        "flop_per_second": max(of["flop"] / of["seconds"] for of in found.values()),
        "operations": found,
    }
    write_atomically(FILE, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{FILE.name}: at most {record['flop_per_second'] / 1e9:.0f} GFLOP/s")
    for name, of in found.items():
        print(f"  {name}: {of['seconds']:.4g} s, {rate(of) / 1e9:.1f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
