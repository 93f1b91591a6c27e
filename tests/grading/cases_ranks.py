"""What goes wrong on ranks. The other exercises are right."""

from pathlib import Path

from tests.grading.cases import case, without
from tests.grading.small_lab import Copy


@case("partial", 3, says="the ranks were stopped", ring_all_gather="error",
      ring_reduce_scatter="error", ring_all_reduce="error")  # fmt: skip
def stops_the_cluster(copy: Copy, path: Path) -> None:
    copy.insert("cluster.stop()", before="exercise-ring_all_gather")


@case("partial", without("ring_shift"), says="died", ring_shift="error")
def rank_exits(copy: Copy, path: Path) -> None:
    """Ranks are replaced, and the cells after it define what they define on the new ones."""
    copy.answer("ring_shift", "%%px\nimport os\nif rank == 1:\n    os._exit(3)\n")


@case("partial", without("ring_shift"), says="Stopped after 3 s", ring_shift="error")
def rank_hangs(copy: Copy, path: Path) -> None:
    copy.answer("ring_shift", "%%px --timeout 3\nwhile rank == 1:\n    pass\n")


@case("partial", without("ring_shift"), says="rank 1", ring_shift="failed")
def one_rank_raises(copy: Copy, path: Path) -> None:
    raises = "    if comm.rank == 1:\n        raise KeyError('rank 1 has no such thing')\n"
    head, _, body = copy.reference("ring_shift").partition('left one."""\n')
    copy.answer("ring_shift", f'{head}left one."""\n{raises}{body}')


@case("partial", without("ring_shift"), says="does not end", ring_shift="failed")
def deadlocked(copy: Copy, path: Path) -> None:
    copy.answer(
        "ring_shift",
        "%%px\ndef ring_shift(x, comm):\n    if comm.rank:\n        comm.Barrier()\n    return x\n",
    )


@case("partial", without("ring_all_reduce"), says="ranks", ring_all_reduce="failed")
def collective_mismatched(copy: Copy, path: Path) -> None:
    copy.answer(
        "ring_all_reduce",
        "%%px\ndef ring_all_reduce(x, comm):\n"
        "    comm.allreduce(1) if comm.rank else comm.bcast(1)\n",
    )
