"""Lab 06's mixed precision against torch.amp, and 16-bit gradients against 32-bit gradients.

In a step, both sides train the same MLP from the same start, with the same images, a fused Adam,
and gradients that are reduced in float16. They find the same scales, skip the same steps, and have
the same losses. Ours has a model in float16 and master weights, and theirs uses autocast. The
library runs on Gloo. Ours is measured on Gloo and on `group` (MPI).

The means of gradients use an emulated link, so both sides take the modeled time of the link, and
the time of the real casts.
"""

import functools
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks import Pair, benchmark
from benchmarks.mnist_trainer import MnistTrainer, adam
from benchmarks.network import LAB_NETWORK, lab_network

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

GRADIENTS = 500_000  # numbers
IMAGES_PER_RANK, HIDDEN_SIZE, MAX_NORM = 32, 128, 1.0
# A scale that first skips steps, and grows again within the compared steps.
SCALE, INTERVAL, COMPARED = 2.0**22, 5, 40


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions and classes of the lab's reference."""
    from parlab_staff.course.references import definitions

    return definitions("06_mixed_precision")


class Trainer(MnistTrainer):
    """A trainer whose `step()` returns this rank's loss before the step, and the scale after it."""

    def __init__(self) -> None:
        super().__init__(HIDDEN_SIZE, IMAGES_PER_RANK)
        # Round the weights, because master weights start as copies of the float16 weights.
        self.model.half().float()


class Ours(Trainer):
    """The lab's step, with its master weights and scaler, on a model in float16."""

    def __init__(self, group: "dist.ProcessGroup") -> None:
        super().__init__()
        self.group, self.images = group, self.images.half()
        self.weights = lab()["MasterWeights"](self.model.half(), adam)
        self.scaler = lab()["LossScaler"](SCALE, growth_interval=INTERVAL)

    def step(self) -> tuple[float, float]:
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(self.model(self.images).float(), self.labels)
        lab()["mixed_step"](self.weights, self.scaler, loss, MAX_NORM, self.group)
        return loss.item(), self.scaler.scale


class Library(Trainer):
    """DDP with autocast, a GradScaler, and gradients compressed to float16."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        from torch.nn.parallel import DistributedDataParallel

        super().__init__()
        self.parallel = DistributedDataParallel(self.model, process_group=dist.group.WORLD)
        self.parallel.register_comm_hook(None, fp16_compress_hook)
        self.optimizer = adam(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=INTERVAL)

    def step(self) -> tuple[float, float]:
        import torch
        from torch.nn.functional import cross_entropy

        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(self.parallel(self.images), self.labels)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), self.scaler.get_scale()


def _set_up(on_group: bool) -> Pair:
    """Return both sides after some steps, in which their losses and scales must be equal."""
    import torch.distributed as dist

    from parlab.rank import group  # starts torch.distributed

    ours, theirs = Ours(group if on_group else dist.group.WORLD), Library()
    scales = []
    for _ in range(COMPARED):
        (loss, scale), (right, found) = ours.step(), theirs.step()
        assert scale == found, f"a scale of {scale:g}, and the library's is {found:g}"
        assert abs(loss - right) < 1e-3, f"the two sides train differently: {loss}, {right}"
        scales.append(scale)
    assert min(scales) < SCALE, "no step was skipped: the scales were not compared"
    assert any(later > scale for scale, later in pairwise(scales)), scales
    return Pair(ours.timed, theirs.timed)


def _register_step(on_group: bool) -> None:
    def set_up() -> Pair:
        return _set_up(on_group)

    set_up.__name__ = f"float16_step_{'group' if on_group else 'gloo'}"
    benchmark(
        peer="autocast, GradScaler and DDP with fp16_compress_hook, on Gloo",
        work=f"float16 training step on {'`group` (MPI)' if on_group else 'Gloo'}: MLP of "
        f"{HIDDEN_SIZE}, {IMAGES_PER_RANK} images on each of 2 ranks, master weights, dynamic loss "
        "scaling, clipping, fused Adam",
        target=1.0,
        ranks=2,
        rounds=30,
        calls=2,
    )(set_up)


for _on_group in (False, True):
    _register_step(_on_group)


def _emulated_mean(dtype: "torch.dtype") -> Pair:
    import torch
    import torch.distributed as dist

    from parlab.network import emulated_group
    from parlab.rank import rank, world_size

    group = emulated_group(lab_network(world_size))
    own = torch.randn(GRADIENTS, generator=torch.Generator().manual_seed(rank))

    def whole() -> torch.Tensor:
        mean = own / world_size
        dist.all_reduce(mean, group=group)
        return mean

    def narrow() -> torch.Tensor:
        mean = (own / world_size).to(dtype)
        dist.all_reduce(mean, group=group)
        return mean.float()

    steps = (world_size + 2) * torch.finfo(dtype).eps
    assert torch.allclose(narrow(), whole(), rtol=0, atol=steps), "the two means are not the same"

    def timed_narrow() -> None:
        narrow()

    def timed_whole() -> None:
        whole()

    return Pair(timed_narrow, timed_whole)


def _register_mean(name: str) -> None:
    def set_up() -> Pair:
        import torch

        return _emulated_mean(getattr(torch, name))

    set_up.__name__ = f"emulated_mean_{name}"
    benchmark(
        peer="the same in float32",
        work=f"mean of {GRADIENTS:,} gradients over 4 ranks, cast to {name} and back, "
        f"{LAB_NETWORK}",
        target=0.6,
        ranks=4,
        rounds=20,
    )(set_up)


for _name in ("float16", "bfloat16"):
    _register_mean(_name)
