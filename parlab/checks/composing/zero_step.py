"""Exercise `zero_step`: some steps are compared with Adam on one rank."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.composing import _steps as meshes
from parlab.costs.collectives import ring_bytes
from parlab.parallel_gpt import ShardedAdam

MISTAKES = Mistakes(
    summed=(
        "gradient_norm gets the sum of the replicas' gradients, expected their mean. Adam hides "
        "this factor, but clipping does not"
    ),
    copies_ignored=(
        "gradient_norm gets the copies {got}. Pass `adam.copies`, or the norm counts some "
        "gradients too often"
    ),
    clipped_by_own_norm=(
        "the gradient is clipped as if its norm were that of this rank's shard. Use the norm of "
        "the whole model's gradient, which gradient_norm returns, to decide whether to clip, and "
        "for the factor, so that both are the same on all ranks"
    ),
    lengthened=(
        "a gradient whose norm is smaller than `max_norm` is scaled by `max_norm` / norm, which "
        "is more than 1. Leave such a gradient as it is"
    ),
    not_gathered=(
        "this rank's `adam.flat` has new values in its own shard only. Gather those of the others"
    ),
    memory_replaced=(
        "{name} was replaced or set to None. Other tensors share its memory, so change its numbers "
        "in place"
    ),
    sends_more=(
        "it makes the calls {got}, in which a rank sends {bytes:.0f} bytes (on rings) to other "
        "replicas, expected at most {right:.0f}. Use one reduce-scatter and one all-gather"
    ),
)
MAX_NORM, LR = 5.0, 0.01
STEPS = {  # the norm of the gradient, divided by MAX_NORM
    "a gradient to clip": 10.0,
    "a gradient to clip, of which the shards are short": 1.1,
    "a gradient that is almost long enough to clip": 0.5,
    "a short gradient": 0.05,
    "a gradient of zero": 0.0,
}
PLACES = ("`adam.flat`", "`adam.gradient`", "`adam.shard`", "`adam.shard.grad`")


@check_of(MISTAKES)
def zero_step(check: Check) -> str:
    """Check the norm, Adam's states, the weights, and the traffic of some steps."""
    meshes.in_each_mesh(check, _case, LR)
    return (
        "norm, clipping, and Adam's steps on the shard, with one reduce-scatter and one "
        f"all-gather, in meshes of 1 to {check.world_size} ranks"
    )


def _case(trial: Trial, own: meshes.Setup) -> None:
    optimizer = None
    if trial.takes_part:
        optimizer = torch.optim.Adam([nn.Parameter(own.adam.flat.detach().clone())], lr=LR)
    for _, share in trial.cases(STEPS, again=False):
        _step(trial, own, optimizer, share * MAX_NORM)


def _step(trial: Trial, own: meshes.Setup, whole: torch.optim.Adam | None, size: float) -> None:
    """Take a step on the shard, and another one, with `whole`, on all weights of the stage.

    The mean gradient of the replicas has the norm `size`.
    """
    adam, groups, seed, calls = own.adam, own.groups, trial.draw.getrandbits(31), []
    if trial.takes_part:
        every = _gradients(own, seed)
        mean = {name: sum(one[name] for one in every) / len(every) for name in every[0]}
        norm, scale = torch.tensor(size), size / meshes.flat(mean).norm()
        mean = scale * _padded(own, mean)
        adam.gradient.copy_(scale * _padded(own, every[own.replica]))
        groups["dp"].take_events()
        places, before = _places(adam), adam.flat.detach().clone()
        length = len(adam.shard)
        part = slice(groups["dp"].rank() * length, (groups["dp"].rank() + 1) * length)

    def gradient_norm(
        gradients: Sequence[Tensor], copies: Sequence[int], group: dist.ProcessGroup
    ) -> Tensor:
        calls.append(([g.detach().clone() for g in gradients], list(copies), group))
        return norm.clone()

    got = trial.run(adam, groups, MAX_NORM, gradient_norm, seconds=meshes.SECONDS)
    if trial.takes_part:
        [weights] = whole.param_groups[0]["params"]
        weights.grad = mean * _clip(norm)
        whole.step()
        own_only = before.clone()
        own_only[part] = weights.detach()[part]
    trial.require(
        lambda: _in_place(adam, places),
        lambda: equal(got, norm, "the returned norm", meshes.TOLERANCE),
        lambda: _arguments(calls, adam, mean[part], own.mesh["dp"], trial.size),
        lambda: _moments(adam, whole.state[weights], part, mean[part], norm),
        lambda: explained(
            adam.flat.detach(),
            weights.detach(),
            {"not_gathered": own_only},
            MISTAKES,
            "`adam.flat`",
            meshes.TOLERANCE,
        ),
        lambda: _traffic(groups["dp"], adam),
    )


def _gradients(own: meshes.Setup, seed: int) -> list[dict[str, Tensor]]:
    """Draw the serial model's gradient for each replica, the same on all copies.

    All replicas have the same signs, so no mean is almost 0. Adam would divide it by a number that
    is almost 0, too, so the weights would depend on rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = {
        name: torch.randn(p.shape, generator=generator).sign()
        for name, p in own.serial.named_parameters()
    }
    return [
        {n: sign * (0.5 + torch.rand(sign.shape, generator=generator)) for n, sign in signs.items()}
        for _ in range(own.mesh["dp"])
    ]


def _padded(own: meshes.Setup, gradient: dict[str, Tensor]) -> Tensor:
    """Return the stage's part of a gradient, with the padding of `adam.flat`."""
    part = meshes.flat(own.stage.part_of(gradient))
    return F.pad(part, (0, len(own.adam.flat) - len(part)))


def _clip(norm: Tensor) -> Tensor:
    return (MAX_NORM / norm).clamp(max=1.0)


def _arguments(
    calls: list[tuple[list[Tensor], list[int], dist.ProcessGroup]],
    adam: ShardedAdam,
    right: Tensor,
    replicas: int,
    ranks: int,
) -> Finding | None:
    """Compare the arguments of gradient_norm with this rank's part of the mean gradient."""
    if len(calls) != 1:
        return observed(f"it calls gradient_norm {len(calls)} times, expected once")
    [(gradients, copies, group)] = calls
    if group is None or group is dist.group.WORLD:
        return COMMON.default_group()
    if group.size() != ranks:
        return observed(
            f"gradient_norm gets a group of {group.size()} ranks, expected all {ranks}, because "
            "all have parts of the gradient"
        )
    sizes, expected = ([len(one) for one in parts] for parts in (gradients, adam.parts))
    if sizes != expected:
        return observed(
            f"gradient_norm gets {len(sizes)} gradients with {sum(sizes)} numbers, expected the "
            f"{len(expected)} parts of `adam.parts` with {sum(expected)}"
        )
    if copies != adam.copies:
        return MISTAKES.copies_ignored(got=copies)
    name, right = "the gradient that gradient_norm gets", right[: sum(sizes)]
    got, wrong = torch.cat([right[:0], *gradients]), {"summed": right * replicas}
    return explained(got, right, wrong, MISTAKES, name, meshes.TOLERANCE)


def _moments(
    adam: ShardedAdam, right: dict[str, Tensor], part: slice, mean: Tensor, norm: Tensor
) -> Finding | None:
    """Compare Adam's first moment. Unlike Adam's step, it shows the gradient's length."""
    got = adam.optimizer.state.get(adam.shard) or {"step": torch.tensor(0)}
    if got["step"] != right["step"]:
        return observed(
            f"Adam has taken {int(got['step'])} steps on `adam.shard`, expected "
            f"{int(right['step'])}: call `adam.optimizer.step()` once"
        )
    moment, name = right["exp_avg"][part], "Adam's mean of this shard's gradients (`exp_avg`)"
    # The moment contains a tenth of the last gradient.
    wrong = {
        "clipped_by_own_norm": moment + 0.1 * (_clip(mean.norm()) - _clip(norm)) * mean,
        "lengthened": moment + 0.1 * (MAX_NORM / norm - _clip(norm)) * mean,
    }
    return explained(got["exp_avg"], moment, wrong, MISTAKES, name, meshes.TOLERANCE)


def _places(adam: ShardedAdam) -> list[int]:
    tensors = adam.flat, adam.gradient, adam.shard, adam.shard.grad
    return [-1 if t is None else t.data_ptr() for t in tensors]


def _in_place(adam: ShardedAdam, before: list[int]) -> Finding | None:
    for name, old, new in zip(PLACES, before, _places(adam), strict=True):
        if old != new:
            return MISTAKES.memory_replaced(name=name)
    return None


def _traffic(group: RecordingGroup, adam: ShardedAdam) -> Finding | None:
    """Allow a reduce-scatter and an all-gather of the stage's weights."""
    got = meshes.ring_bytes_in(group)
    right = 2 * ring_bytes("all_gather", adam.flat.nbytes, group.size())
    if got <= 1.01 * right + 8:
        return None
    calls = ", ".join(event.op for event in group.events if event.kind == "start")
    return MISTAKES.sends_more(got=calls, bytes=got, right=right)
