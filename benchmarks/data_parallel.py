"""Lab 02's data parallelism against DistributedDataParallel: a whole training step.

Both sides train the same MLP from the same start, with 64 MNIST images per rank, cross-entropy, and
a fused Adam, and reach the same weights. Both have their default settings.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark
from benchmarks.mnist_trainer import MnistTrainer, adam

if TYPE_CHECKING:
    import torch.distributed as dist

IMAGES_PER_RANK = 64
HIDDEN_SIZES = (256, 1024)


class Trainer(MnistTrainer):
    """A trainer with the lab's functions and an optimizer."""

    def __init__(self, hidden_size: int) -> None:
        from parlab_staff.course.references import definitions

        super().__init__(hidden_size, IMAGES_PER_RANK)
        self.lab = definitions("02_data_parallel")
        self.share = 1 / self.world_size
        self.optimizer = adam(self.model.parameters())


class Flat(Trainer):
    """Gradients in one flat buffer, and one mpi4py all-reduce."""

    def __init__(self, hidden_size: int) -> None:
        from parlab.rank import comm

        super().__init__(hidden_size)
        self.comm = comm
        self.lab["broadcast_state"](self.model, comm)
        self.buffer = self.lab["flat_gradients"](self.model)

    def step(self) -> None:
        total = IMAGES_PER_RANK * self.comm.size
        data = (self.images, self.labels)
        self.lab["flat_step"](self.model, self.buffer, self.optimizer, *data, total, self.comm)


class Bucketed(Trainer):
    """The lab's BucketedDataParallel."""

    def __init__(self, hidden_size: int, group: "dist.ProcessGroup") -> None:
        super().__init__(hidden_size)
        self.parallel = self.lab["BucketedDataParallel"](self.model, group)

    def step(self) -> None:
        self.parallel.zero_grad()
        (self.share * self.loss(self.parallel)).backward()
        self.parallel.finish()
        self.optimizer.step()


class Library(Trainer):
    """PyTorch's DistributedDataParallel."""

    def __init__(self, hidden_size: int, group: "dist.ProcessGroup", **settings: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(hidden_size)
        self.parallel = DistributedDataParallel(self.model, process_group=group, **settings)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.parallel).backward()
        self.optimizer.step()


@dataclass(frozen=True)
class Comparison:
    """One benchmark: ours ("flat" or "bucketed") against DDP on a backend."""

    ours: str
    backend: str
    target: float


COMPARISONS = (
    Comparison("flat", "Gloo", 0.75),
    Comparison("flat", "group", 1.0),
    Comparison("bucketed", "Gloo", 1.0),
    Comparison("bucketed", "group", 1.0),
)


def _set_up(comparison: Comparison, hidden_size: int) -> Pair:
    """Return both sides after three steps, after which their weights must be equal."""
    import torch
    import torch.distributed as dist

    from parlab.rank import group

    on = group if comparison.backend == "group" else dist.new_group(backend="gloo")
    ours = Flat(hidden_size) if comparison.ours == "flat" else Bucketed(hidden_size, on)
    theirs = Library(hidden_size, on)
    for _ in range(3):
        ours.step()
        theirs.step()
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4), "the two sides train differently"
    return Pair(ours.step, theirs.step)


def _register(comparison: Comparison, hidden_size: int) -> None:
    def set_up() -> Pair:
        return _set_up(comparison, hidden_size)

    ours = "flat mpi4py" if comparison.ours == "flat" else "BucketedDataParallel"
    backend = "`group` (MPI)" if comparison.backend == "group" else "Gloo"
    set_up.__name__ = f"{comparison.ours}_step_{hidden_size}_{comparison.backend.lower()}"
    benchmark(
        peer=f"DistributedDataParallel on {backend}",
        work=f"{ours} training step: MLP of {hidden_size}, {IMAGES_PER_RANK} images on each of 2 "
        "ranks, fused Adam",
        target=comparison.target,
        ranks=2,
        rounds=40,
        calls=10 if hidden_size < 1000 else 4,
    )(set_up)


for _comparison in COMPARISONS:
    for _hidden_size in HIDDEN_SIZES:
        _register(_comparison, _hidden_size)
