"""Reference and library, side by side: `python -m benchmarks`, or `make bench`.

    python -m benchmarks                   all
    python -m benchmarks collectives       those of one file
    python -m benchmarks all_reduce_16MB   one
    python -m benchmarks --list            what there is

To add one, write a function in a file of this folder, one file a topic. It sets the work up and
returns two functions that do it once, ours and the one to compare with:

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

The function's name is the benchmark's. With `ranks=2` it runs on two fresh MPI ranks, with
`ranks=0` in one fresh process that may start ranks itself. A timed function that returns a number
has measured itself, in seconds. Make sure, in the set-up, that both do the same work.

Both are called in turn after warm-up, ours first in one round and second in the next, so that
what the machine does besides hits both. A sample is the time of `calls` calls, of the slowest
rank. The ratio is that of the medians, ours over the peer's: below 1 is ahead. Its spread is the
range in which 90 % of the ratios lie when the rounds are drawn again at random (bootstrap).
"""

from benchmarks.harness import Benchmark, Pair, benchmark

__all__ = ["Benchmark", "Pair", "benchmark"]
