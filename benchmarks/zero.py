"""Lab 03's stages of ZeRO against PyTorch's: a whole training step, and the bytes of each side.

Both sides train the same MLP from the same start, with 64 MNIST images per rank, cross-entropy, and
a fused Adam. They reach the same losses, and ours holds no more bytes than the library. The library
runs on Gloo. Ours is measured on Gloo and on `group` (MPI).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark
from benchmarks.mnist_trainer import MnistTrainer, adam

if TYPE_CHECKING:
    import torch.distributed as dist

IMAGES_PER_RANK = 64
HIDDEN_SIZE = 512
# Fused Adam has a step count for each tensor, and the sides have different numbers of tensors.
# Also, shards are padded.
SLACK = 1.02


class Trainer(MnistTrainer):
    """A trainer whose `step()` returns this rank's loss before the step."""

    def __init__(self) -> None:
        super().__init__(HIDDEN_SIZE, IMAGES_PER_RANK)

    def held(self) -> int:
        """Return the bytes of model states on this rank."""
        raise NotImplementedError


class Ours(Trainer):
    """A stage of the lab's reference."""

    def __init__(self, name: str, group: "dist.ProcessGroup") -> None:
        from parlab_staff.course.references import definitions

        super().__init__()
        layers = self.model if name == "Stage1" else list(self.model)
        self.stage = definitions("03_zero")[name](layers, adam, group)

    def step(self) -> float:
        self.stage.zero_grad()
        loss = self.loss(self.model)
        (loss / self.world_size).backward()
        self.stage.finish()
        self.stage.step()
        return loss.item()

    def held(self) -> int:
        from parlab import memory

        tensors = [*self.model.parameters(), *self.stage.shards]
        return (
            memory.tensor_bytes(t.detach() for t in tensors)
            + memory.tensor_bytes(t.grad for t in tensors if t.grad is not None)
            + memory.optimizer_bytes(self.stage.optimizer)
        )


class Library(Trainer):
    """A library's wrapper of `self.model`, in `self.parallel`, with an optimizer."""

    optimizer: Any
    parallel: Any

    def step(self) -> float:
        # Keep gradients until the next step, like ours, because the held bytes include them.
        self.optimizer.zero_grad()
        loss = self.loss(self.parallel)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def held(self) -> int:
        from parlab import memory

        return memory.model_states(self.model, self.optimizer).total


class ZeroRedundancy(Library):
    """DistributedDataParallel with ZeroRedundancyOptimizer."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel

        super().__init__()
        self.parallel = DistributedDataParallel(self.model, process_group=dist.group.WORLD)
        self.optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(), torch.optim.Adam, lr=1e-3, fused=True
        )


class FullySharded(Library):
    """FSDP2, layer by layer."""

    def __init__(self, reshard: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        mesh = init_device_mesh("cpu", (self.world_size,))
        for layer in [*(m for m in self.model if list(m.parameters())), self.model]:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        self.parallel, self.optimizer = self.model, adam(self.model.parameters())


@dataclass(frozen=True)
class Comparison:
    """One benchmark: a class of the lab against a class of the library."""

    ours: str
    peer: str


COMPARISONS = (
    Comparison("Stage1", "ZeroRedundancyOptimizer with DDP"),
    Comparison("Stage2", "fully_shard, kept after forward"),
    Comparison("Stage3", "fully_shard"),
    Comparison("Prefetching", "fully_shard"),
)


def _library(peer: str) -> Library:
    if peer.startswith("Zero"):
        return ZeroRedundancy()
    return FullySharded(reshard=peer == "fully_shard")


def _set_up(comparison: Comparison, on_group: bool) -> Pair:
    """Return both sides after three steps, in which their losses must be equal."""
    import torch.distributed as dist

    from parlab.rank import comm, group  # starts torch.distributed

    ours = Ours(comparison.ours, group if on_group else dist.group.WORLD)
    theirs = _library(comparison.peer)
    for _ in range(3):
        assert abs(ours.step() - theirs.step()) < 1e-3, "the two sides train differently"
    if comparison.ours != "Stage2":  # its peer frees whole parameters after the backward pass
        # Compare the peaks, because ZeroRedundancyOptimizer distributes whole tensors unevenly.
        both = [max(comm.allgather(side.held())) for side in (ours, theirs)]
        assert both[0] <= SLACK * both[1], f"ours holds {both[0]} bytes, theirs {both[1]}"
    return Pair(ours.timed, theirs.timed)


def _register(comparison: Comparison, on_group: bool) -> None:
    def set_up() -> Pair:
        return _set_up(comparison, on_group)

    set_up.__name__ = f"zero_{comparison.ours.lower()}_step_{'group' if on_group else 'gloo'}"
    benchmark(
        peer=f"{comparison.peer}, on Gloo",
        work=f"{comparison.ours} training step on {'`group` (MPI)' if on_group else 'Gloo'}: MLP "
        f"of {HIDDEN_SIZE}, {IMAGES_PER_RANK} images on each of 2 ranks, fused Adam",
        target=1.0,
        ranks=2,
        rounds=30,
        calls=4,
    )(set_up)


for _comparison in COMPARISONS:
    for _on_group in (False, True):
        _register(_comparison, _on_group)
