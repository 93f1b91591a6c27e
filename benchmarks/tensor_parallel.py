"""Lab 04's parallel blocks against PyTorch's parallelize_module: a whole training step.

Both sides train the same GPT from the same start, with the same samples on all ranks and a fused
Adam. The ranks share the blocks, but not the embeddings. Both sides reach the same losses and send
the same bytes. The library runs on Gloo. Ours is measured on Gloo and on `group` (MPI).
"""

from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

SAMPLES, HIDDEN_SIZE, HEADS = 8, 128, 4


class Trainer:
    """A GPT from a fixed start. `share` cuts its blocks, and `step()` trains once."""

    def __init__(self) -> None:
        import torch

        from parlab import models
        from parlab.data import text

        config = models.GPTConfig(hidden_size=HIDDEN_SIZE, heads=HEADS)
        length = config.sequence_length + 1
        windows = torch.from_numpy(text("train", SAMPLES * length).astype("int64"))
        batch = windows.view(SAMPLES, length)
        self.tokens, self.targets = batch[:, :-1], batch[:, 1:]
        torch.manual_seed(0)
        self.model = models.GPT(config)
        for block in self.model.blocks:
            self.share(block)
        # A fused operation takes DTensors or ordinary tensors, but not both.
        kinds: dict[type, list[torch.nn.Parameter]] = {}
        for parameter in self.model.parameters():
            kinds.setdefault(type(parameter.data), []).append(parameter)
        self.optimizers = [torch.optim.Adam(p, lr=1e-3, fused=True) for p in kinds.values()]

    def share(self, block: Any) -> None:
        """Reduce a block to this rank's share."""
        raise NotImplementedError

    def loss(self) -> "torch.Tensor":
        from torch.nn.functional import cross_entropy

        return cross_entropy(self.model(self.tokens).flatten(0, 1), self.targets.flatten())

    def step(self) -> float:
        """Train once. Return the loss before the step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

    def timed(self) -> None:
        """Do a step and return nothing, because a returned number would count as seconds."""
        self.step()

    def sent(self) -> float:
        """Return the bytes that this rank sends in a step, on rings."""
        from parlab.ledger import Ledger

        ledger = Ledger()
        with ledger:
            self.step()
        return ledger.ring_bytes()


class Ours(Trainer):
    """The blocks as the lab's reference cuts them."""

    def __init__(self, group: "dist.ProcessGroup") -> None:
        self.group = group
        super().__init__()

    def share(self, block: Any) -> None:
        from parlab_staff.course.references import definitions

        definitions("04_tensor_parallel")["parallel_block"](block, self.group)


class Library(Trainer):
    """The same plan for PyTorch's parallelize_module."""

    def share(self, block: Any) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        from parlab.rank import world_size

        sections = block.attention.sections
        for parameter in block.attention.qkv.parameters():
            parts = [section.chunk(world_size) for section in parameter.data.split(sections)]
            parameter.data = torch.cat([p[r] for r in range(world_size) for p in parts])
        plan = {
            "attention.qkv": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "mlp.0": ColwiseParallel(),
            "mlp.2": RowwiseParallel(),
        }
        parallelize_module(block, init_device_mesh("cpu", (world_size,)), plan)
        block.attention.heads //= world_size
        block.attention.key_value_heads //= world_size


def _set_up(on_group: bool) -> Pair:
    """Return both sides after three steps. Their losses must be equal, and ours sends no more."""
    import torch.distributed as dist

    from parlab.rank import group  # starts torch.distributed

    ours, theirs = Ours(group if on_group else dist.group.WORLD), Library()
    for _ in range(3):
        assert abs(ours.step() - theirs.step()) < 1e-3, "the two sides train differently"
    sent = ours.sent(), theirs.sent()
    assert sent[0] <= sent[1], f"ours sends {sent[0]} bytes, theirs {sent[1]}"
    return Pair(ours.timed, theirs.timed)


def _register(on_group: bool) -> None:
    def set_up() -> Pair:
        return _set_up(on_group)

    set_up.__name__ = f"tensor_parallel_step_{'group' if on_group else 'gloo'}"
    benchmark(
        peer="parallelize_module, on Gloo",
        work=f"tensor-parallel training step on {'`group` (MPI)' if on_group else 'Gloo'}: GPT of "
        f"2 blocks of {HIDDEN_SIZE}, {SAMPLES} samples of 64 bytes, 2 ranks, fused Adam",
        target=1.0,
        ranks=2,
        rounds=30,
        calls=2,
    )(set_up)


for _on_group in (False, True):
    _register(_on_group)
