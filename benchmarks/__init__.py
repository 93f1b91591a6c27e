"""Compares the references with libraries: `python -m benchmarks`, or `make bench`.

    python -m benchmarks                   all benchmarks
    python -m benchmarks collectives       the benchmarks of one file
    python -m benchmarks all_reduce_16MB   one benchmark
    python -m benchmarks --list            list all benchmarks

To add a benchmark, write a function in a file of this folder, which has one file for each topic.
The function sets up the work, and returns two functions that do it once: ours, and the peer to
compare with:

    from benchmarks import Pair, benchmark

    @benchmark(
        peer="torch.distributed on Gloo",
        work="sum of 1 kB of float32 over 2 ranks",
        target=0.1,
        ranks=2,
        calls=50,
    )
    def all_reduce_1kB() -> Pair:
        from parlab.rank import group  # imports of torch and of ranks: inside

        x = torch.ones(256)
        return Pair(
            reference=lambda: dist.all_reduce(x, group=group),
            peer=lambda: dist.all_reduce(x),
        )

The benchmark has the function's name. With `ranks=2`, it runs on two new MPI ranks, and with
`ranks=0` in one new process, which may start ranks itself. If a timed function returns a number,
this is its own measurement in seconds. Make sure in the set-up that both do the same work.

After a warm-up, both are called in turn. Ours is first in one round and second in the next, so that
other work of the machine affects both. A sample is the time of `calls` calls on the slowest rank.
The ratio is our median divided by the peer's median, so ours is faster if it is below 1. Its spread
is the range that contains 90 % of the ratios if the rounds are drawn again at random (bootstrap).
"""

from benchmarks.harness import Benchmark, Pair, benchmark

__all__ = ["Benchmark", "Pair", "benchmark"]
