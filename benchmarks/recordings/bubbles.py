"""Records emulated steps of lab 05's pipelines, and the bytes that they hold, for chapter 05.

    python -m benchmarks.recordings.bubbles

It writes `book/measurements/bubbles.json`. The schedules and their execution come from the lab.
Messages are real, and each stage's passes take a fixed time. The fastest of several steps counts,
because a busy machine can only make a step slower. Held bytes are measured on the real stages of a
small GPT, and do not depend on the machine.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any

from benchmarks.recordings import record_on_ranks
from parlab.network import Link, Network, emulated_group, sub_group
from parlab.runtime.paths import ROOT, write_atomically

if TYPE_CHECKING:
    import torch.distributed as dist

COMMAND = "python -m benchmarks.recordings.bubbles"
FILE = ROOT / "book" / "measurements" / "bubbles.json"
RANKS, STEPS = 4, 3
# The times of a rank's whole share for one micro-batch. They are so long that Python's time for a
# pass, 1 to 4 ms, is short even compared with a bubble of 3 %.
FORWARD, BACKWARD = 320e-3, 640e-3
LINK = Link.of(20e-6, 1e9)
MICRO_BATCHES = [1, 2, 4, 8, 16]
# A batch in pieces: the time of a pass of the whole batch on a rank, the constant time of each pass
# as a share of that time, and the numbers of pieces.
WHOLE, FIXED, PIECES = 72e-3, 0.03, [1, 2, 3, 6, 10, 12, 24, 40]
HELD_FOR = [4, 8, 16]


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("05_pipeline_parallel")


def schedules() -> dict[str, tuple[int, Callable[[int, int], Any]]]:
    """Return the number of stages on each rank and the lab's function, by the schedule's name."""
    return {
        "GPipe": (1, lab()["gpipe"]),
        "1F1B": (1, lab()["one_f_one_b"]),
        "interleaved": (2, lambda ranks, m: lab()["interleaved"](ranks, m, 2)),
    }


def fastest(
    schedule: Any, ranks: int, chunks: int, forward: float, group: "dist.ProcessGroup"
) -> float:
    """Return the seconds of a step on stages with fixed times, until the end of the last rank."""
    import torch
    from torch import nn

    from parlab.network import Stage
    from parlab.pipeline import sizes
    from parlab.pipeline.stages import share_of
    from parlab.rank import comm

    member, m, seconds = comm.rank < ranks, sizes(schedule)[2], []
    inputs, targets = torch.ones(m, 8), torch.zeros(m, 8)
    if member:
        layers = [nn.Linear(8, 8) for _ in range(ranks * chunks)]
        share = share_of(layers, torch.zeros(1, 8), comm.rank, ranks)
        for number, stage in share.own.items():
            share.own[number] = Stage(stage, forward / chunks, 2 * forward / chunks)
        pipeline = lab()["Pipeline"](share, schedule, lambda y, t: (y - t).square().mean(), group)
    for _ in range(STEPS):
        comm.Barrier()
        start = time.perf_counter()
        if member:
            pipeline.step(inputs, targets)
        seconds.append(max(comm.allgather(time.perf_counter() - start)))
    return float(f"{min(seconds):.4g}")


def bubbles(whole: "dist.ProcessGroup") -> list[dict[str, Any]]:
    """Return a step's seconds for 2 and 4 ranks, all schedules, and numbers of micro-batches."""
    rows = []
    for ranks in (2, RANKS):
        group = whole if ranks == RANKS else sub_group(whole, list(range(ranks)))
        for name, (chunks, make) in schedules().items():
            for m in MICRO_BATCHES:
                if chunks > 1 and m % ranks:
                    continue
                seconds = fastest(make(ranks, m), ranks, chunks, FORWARD, group)
                rows.append(
                    {"schedule": name, "ranks": ranks, "micro_batches": m, "chunks": chunks,
                     "seconds": seconds}
                )  # fmt: skip
    return rows


def pieces(whole: "dist.ProcessGroup") -> dict[str, float]:
    """Return the seconds of a step of one batch on two ranks, by the number of pieces."""
    group = sub_group(whole, [0, 1])
    gpipe = schedules()["GPipe"][1]
    return {str(m): fastest(gpipe(2, m), 2, 1, WHOLE * (FIXED + 1 / m), group) for m in PIECES}


def held(group: "dist.ProcessGroup") -> dict[str, dict[str, list[int]]]:
    """Return each rank's peak bytes of tensors in a step, minus the bytes before the step.

    The stages are parts of a GPT, and micro-batches have equal sizes. "one" is GPipe with a single
    micro-batch.
    """
    import torch
    import torch.nn.functional as F

    from parlab import memory, models
    from parlab.data import text
    from parlab.pipeline.stages import layers_of, share_of
    from parlab.rank import comm

    samples = 8
    config = models.GPTConfig(hidden_size=32, sequence_length=32, layers=2 * RANKS - 2)
    length = config.sequence_length + 1
    windows = torch.from_numpy(text("train", samples * max(HELD_FOR) * length).astype("int64"))
    windows = windows.view(-1, length)

    def peak(make: Callable[[int, int], Any], chunks: int, m: int) -> int:
        torch.manual_seed(0)
        stages = lab()["split_model"](layers_of(models.GPT(config)), RANKS * chunks)
        tokens, targets = windows[: samples * m, :-1], windows[: samples * m, 1:]
        share = share_of(stages, tokens[:1], comm.rank, RANKS)
        pipeline = lab()["Pipeline"](
            share,
            make(RANKS, m),
            lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()),
            group,
        )
        pipeline.step(tokens, targets)  # creates the gradients
        with memory.Peak(torch.device("cpu")) as counted:
            pipeline.step(tokens, targets)
        return counted.bytes

    def of_all(make: Callable[[int, int], Any], chunks: int, m: int) -> list[int]:
        return comm.allgather(peak(make, chunks, m))

    found = {"one": {"1": of_all(schedules()["GPipe"][1], 1, 1)}}
    for name, (chunks, make) in schedules().items():
        found[name] = {str(m): of_all(make, chunks, m) for m in HELD_FOR}
    return found


def measure(machine_text: str) -> None:
    """Measure on all ranks. Rank 0 writes the file."""
    from parlab.rank import comm, group

    whole = emulated_group(Network(RANKS, 1, LINK, LINK))
    record = {
        "what": "emulated: steps of lab 05's pipelines, whose passes take a set time, the fastest "
        f"of {STEPS}; and bytes of tensors at the peak of a step of a small GPT, by rank",
        "machine": machine_text,
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
        "command": COMMAND,
        "link": [LINK.alpha, LINK.bandwidth],
        "forward": FORWARD,
        "backward": BACKWARD,
        "whole": WHOLE,
        "fixed": FIXED,
        "bubbles": bubbles(whole),
        "pieces": pieces(whole),
        "held": held(group),
    }
    if comm.rank == 0:
        write_atomically(FILE, json.dumps(record, indent=2) + "\n")
        print(f"{FILE.name}: {record['pieces']}, {record['held']}")
        for row in record["bubbles"]:
            ideal = row["micro_batches"] * (FORWARD + BACKWARD)
            print(row, f"bubble {row['seconds'] / ideal - 1:.3f}")


if __name__ == "__main__":
    record_on_ranks(COMMAND, RANKS, measure)
