"""Mistakes on ranks. The other exercises are right."""

import os
from pathlib import Path

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(ring_shift=3, ring_all_gather=4, ring_reduce_scatter=4, ring_all_reduce=3)


@case("partial", 3, says="The ranks were stopped", ring_all_gather="error",
      ring_reduce_scatter="error", ring_all_reduce="error")  # fmt: skip
def stops_the_cluster(copy: Copy, path: Path) -> None:
    copy.insert("getattr(cluster, 'stop')()", before="exercise-ring_all_gather")


@case("passed", case.all, says="calls cluster.stop(), cluster.start(3), which did not run")
def other_ranks_between_exercises(copy: Copy, path: Path) -> None:
    """It starts new ranks, which would not have the earlier definitions."""
    copy.insert("cluster.stop()\ncluster.start(3)", before="exercise-ring_all_reduce")


@case("passed", case.all, notes="says cl.start(2), start(2), parlab.cluster.restart()")
def other_ranks_by_other_names(copy: Copy, path: Path) -> None:
    source = "import parlab.cluster\nfrom parlab import cluster as cl\n"
    source += "from parlab.cluster import start\n"
    source += "cl.start(2); start(2)\nparlab.cluster.restart()"
    copy.insert(source, before="exercise-ring_shift")


@case("passed", case.all)
def assigns_through_the_module(copy: Copy, path: Path) -> None:
    """It assigns to a name of the lab, which gets its value back before each exercise and check."""
    copy.insert("%%px\nimport __main__\n__main__.rank = 7", before="exercise-ring_shift")


@case("partial", case.without("ring_shift"), says="died", ring_shift="error")
def rank_exits(copy: Copy, path: Path) -> None:
    """A rank ends. All ranks are replaced, and the later cells run on the new ones."""
    copy.answer("ring_shift", "%%px\nimport os\nif rank == 1:\n    os._exit(3)\n")


@case("partial", case.without("ring_shift"), says="Stopped after 3 s", ring_shift="error")
def rank_hangs(copy: Copy, path: Path) -> None:
    copy.answer("ring_shift", "%%px --timeout 3\nwhile rank == 1:\n    pass\n")


VERBOSE = """\
%%px --timeout 100
while True:
    if rank == 1:
        comm.Recv(np.empty(1), source=0)
    print("." * 1000, flush=True)
"""


@case("partial", case.without("ring_shift"), says="Interrupted", ring_shift="timeout")
def interrupted_while_ranks_print(copy: Copy, path: Path) -> None:
    """The grader interrupts it before the cell's own deadline, and the ranks stay usable."""
    copy.answer("ring_shift", VERBOSE)
    copy.insert(VERBOSE, before="exercise-ring_all_reduce")


@case("partial", case.without("ring_shift"), says="rank 1", ring_shift="failed")
def one_rank_raises(copy: Copy, path: Path) -> None:
    raises = "    if comm.rank == 1:\n        raise KeyError('rank 1 has no such thing')\n"
    head, _, body = copy.reference("ring_shift").partition('left one."""\n')
    copy.answer("ring_shift", f'{head}left one."""\n{raises}{body}')


@case("partial", case.without("ring_shift"), says="does not end", ring_shift="failed")
def deadlocked(copy: Copy, path: Path) -> None:
    copy.answer(
        "ring_shift",
        "%%px\ndef ring_shift(x, comm):\n    if comm.rank:\n        comm.Barrier()\n    return x\n",
    )


@case("partial", case.without("ring_all_reduce"), says="ranks", ring_all_reduce="failed")
def collective_mismatched(copy: Copy, path: Path) -> None:
    copy.answer(
        "ring_all_reduce",
        "%%px\ndef ring_all_reduce(x, comm):\n"
        "    comm.allreduce(1) if comm.rank else comm.bcast(1)\n",
    )


def with_more(copy: Copy, more: str) -> None:
    """Make `ring_shift` right, with `more` before its return."""
    source = copy.reference("ring_shift")
    last = "    return received"
    copy.answer("ring_shift", source.replace(last, f"    {more}\n{last}"))


@case("partial", 12, ring_shift="partial")
def leaves_a_message(copy: Copy, path: Path) -> None:
    """It leaves a message that the next exercise would receive instead of its own."""
    with_more(copy, "comm.Isend(x, dest=right)")


@case("partial", case.without("ring_shift"), notes="alone, and 0 after", ring_shift="failed")
def leaves_a_changed_library(copy: Copy, path: Path) -> None:
    with_more(copy, "np.empty_like = None")


@case("partial", case.without("ring_shift"), ring_shift="failed")
def revokes_the_communicator(copy: Copy, path: Path) -> None:
    with_more(copy, "comm.Revoke(); comm.Barrier()")  # which raises on every rank


@case("partial", 12, ring_shift="partial")
def frees_the_communicator(copy: Copy, path: Path) -> None:
    with_more(copy, "comm.Free()")


@case("passed", case.all)
def fresh_ranks(copy: Copy, path: Path) -> None:
    """It repeats the lab's start and a copy of its imports, and then defines a helper."""
    [imports] = [c.source for c in copy.cells if c.source.startswith("%%px\nimport numpy")]
    helper = "%%px\ndef right_of(comm):\n    return (comm.rank + 1) % comm.size\n"
    for source in ("cluster.start(3)", imports, helper):
        copy.insert(source, before="exercise-ring_shift")
    source = copy.reference("ring_shift").replace("dest=right", "dest=right_of(comm)")
    copy.answer("ring_shift", source)


@case("passed", case.all, student="-Zoë [2] müller (copy)")
def right(copy: Copy, path: Path) -> None:
    """Everything is solved. The student's name has characters that a shell treats specially."""


@case("partial", case.without("ring_reduce_scatter", "ring_all_reduce"),
      ring_reduce_scatter="missing", ring_all_reduce="missing")  # fmt: skip
def half_done(copy: Copy, path: Path) -> None:
    copy.stub("ring_reduce_scatter").stub("ring_all_reduce")


@case("grader_error", None, notes="not an ordinary file")
def pipe(copy: Copy, path: Path) -> None:
    """It is a pipe. A program that opens it waits forever."""
    os.mkfifo(path)
