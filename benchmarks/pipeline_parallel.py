"""Lab 05's pipelines against torch.distributed.pipelining: a whole training step.

Both sides train the same GPT from the same start, with the same stages and micro-batches and a
fused Adam, and reach the same losses. The library runs on Gloo. Ours is measured on Gloo and on
`group` (MPI). On both sides, the ends of the GPT have two separate weights.
"""

import copy
import functools
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

SAMPLES, MICRO_BATCHES, HIDDEN_SIZE, LAYERS = 16, 4, 128, 4
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved")


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("05_pipeline_parallel")


def token_loss(scores: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    from torch.nn.functional import cross_entropy

    return cross_entropy(scores.flatten(0, 1), targets.flatten())


class Trainer:
    """This rank's stages of a GPT from a fixed start, and its optimizer; `step()` trains once."""

    def __init__(self, schedule: str) -> None:
        import torch

        from parlab import models
        from parlab.data import text
        from parlab.pipeline.stages import layers_of, share_of
        from parlab.rank import rank, world_size

        self.rank, self.ranks = rank, world_size
        config = models.GPTConfig(hidden_size=HIDDEN_SIZE, layers=LAYERS)
        length = config.sequence_length + 1
        windows = torch.from_numpy(text("train", SAMPLES * length).astype("int64"))
        batch = windows.view(SAMPLES, length)
        self.inputs, self.targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        torch.manual_seed(0)
        layers = [copy.deepcopy(layer) for layer in layers_of(models.GPT(config))]
        self.chunks = 2 if schedule == "interleaved" else 1
        stages = lab()["split_model"](layers, world_size * self.chunks)
        self.share = share_of(stages, self.inputs[:1], rank, world_size)
        self.optimizer = torch.optim.Adam(self.share.parameters(), lr=1e-3, fused=True)

    def gradients(self) -> float | None:
        """Run forward and backward passes. Return the loss on the last rank."""
        raise NotImplementedError

    def step(self) -> float | None:
        """Train once. Return the loss before the step, on the last rank."""
        self.optimizer.zero_grad()
        loss = self.gradients()
        self.optimizer.step()
        return loss

    def timed(self) -> None:
        """Do a step and return nothing, because a returned number would count as seconds."""
        self.step()


class Ours(Trainer):
    """The lab's schedule, run by the lab's pipeline."""

    def __init__(self, schedule: str, group: "dist.ProcessGroup") -> None:
        super().__init__(schedule)
        chunks = [self.chunks] if schedule == "interleaved" else []
        actions = lab()[schedule](self.ranks, MICRO_BATCHES, *chunks)
        self.pipeline = lab()["Pipeline"](self.share, actions, token_loss, group)

    def gradients(self) -> float | None:
        return self.pipeline.step(self.inputs, self.targets)


class Library(Trainer):
    """The library's schedule of the same name, on the default group: Gloo."""

    def __init__(self, schedule: str) -> None:
        from torch.distributed import pipelining

        super().__init__(schedule)
        stages = [
            pipelining.PipelineStage(module, number, self.share.count, self.share.device)
            for number, module in self.share.own.items()
        ]
        make: Any = {
            "gpipe": pipelining.ScheduleGPipe,
            "one_f_one_b": pipelining.Schedule1F1B,
            "interleaved": pipelining.ScheduleInterleaved1F1B,
        }[schedule]
        of = stages if schedule == "interleaved" else stages[0]
        self.schedule = make(of, n_microbatches=MICRO_BATCHES, loss_fn=token_loss)

    def gradients(self) -> float | None:
        losses: list[torch.Tensor] = []
        inputs = (self.inputs,) if self.rank == 0 else ()
        last = self.rank == self.ranks - 1
        ends = {"target": self.targets, "losses": losses} if last else {}
        self.schedule.step(*inputs, **ends, return_outputs=False)
        return sum(loss.item() for loss in losses) / len(losses) if losses else None


def _set_up(schedule: str, on_group: bool) -> Pair:
    """Return both sides after three steps, in which their losses must be equal."""
    import torch.distributed as dist

    from parlab.rank import comm, group  # starts torch.distributed

    ours = Ours(schedule, group if on_group else dist.group.WORLD)
    theirs = Library(schedule)
    for _ in range(3):
        losses = comm.bcast((ours.step(), theirs.step()), root=comm.size - 1)
        assert abs(losses[0] - losses[1]) < 1e-3, f"the two sides train differently: {losses}"
    return Pair(ours.timed, theirs.timed)


def _register(schedule: str, on_group: bool) -> None:
    def set_up() -> Pair:
        return _set_up(schedule, on_group)

    set_up.__name__ = f"{schedule}_step_{'group' if on_group else 'gloo'}"
    benchmark(
        peer="torch.distributed.pipelining, on Gloo",
        work=f"{schedule} training step on {'`group` (MPI)' if on_group else 'Gloo'}: GPT of "
        f"{LAYERS} blocks of {HIDDEN_SIZE}, {SAMPLES} samples of 64 bytes in {MICRO_BATCHES} "
        "micro-batches, 2 ranks, fused Adam",
        target=1.0,
        ranks=2,
        rounds=30,
        calls=2,
    )(set_up)


for _schedule in SCHEDULES:
    for _on_group in (False, True):
        _register(_schedule, _on_group)
