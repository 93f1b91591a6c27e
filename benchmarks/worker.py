"""Measures one benchmark, alone or on its ranks. `python -m benchmarks` calls it."""

from benchmarks.harness import Benchmark, Samples, measure, of_topic


def measured(topic: str, name: str) -> dict[str, list[float]]:
    """Return the samples of a benchmark, by name. Collective over its ranks."""
    bench = _named(topic, name)
    return (_on_ranks(bench) if bench.ranks else _alone(bench))._asdict()


def rehearse(topic: str, name: str) -> None:
    """Run the work of a GPU benchmark on the CPU, in a small size and without measuring."""
    for work in _named(topic, name).set_up(small=True):
        work()


def _named(topic: str, name: str) -> Benchmark:
    return {bench.name: bench for bench in of_topic(topic)}[name]


def _on_ranks(bench: Benchmark) -> Samples:
    from mpi4py import MPI

    from parlab.rank.world import new_communicator

    comm = new_communicator()
    return measure(
        bench, together=comm.Barrier, slowest=lambda seconds: comm.allreduce(seconds, op=MPI.MAX)
    )


def _alone(bench: Benchmark) -> Samples:
    return measure(bench, together=lambda: None, slowest=lambda seconds: seconds)
