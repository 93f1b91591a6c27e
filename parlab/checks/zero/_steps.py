"""Compare the steps of a learner's stage with the steps of one rank that has all samples."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.compare import equal, explained
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE, Shard, tokens
from parlab.checks.base.trial import Explain, Trial
from parlab.checks.zero._models import awkward_blocks, parameter_vector
from parlab.checks.zero._training import MakeOptimizer, Record, Units, Values, Watch, train
from parlab.sharding import own_parameters

SECONDS = 10.0  # steps need milliseconds, but on a busy machine, the ranks may meet late
SLACK = 1.02  # measured bytes may exceed the formula by 2 %

SUMMED = {
    "not_summed": "each shard has the gradient of its own rank's samples: sum over the ranks",
    "averaged_again": (
        "the gradients are averaged, but the caller has already weighted the loss. Sum over the "
        "ranks, and do not divide by their number"
    ),
}
FREED = {
    "gradients_kept": "{name} still has a .grad after finish(): set it to None once it is reduced",
    "whole_kept": (
        "the shards' gradients keep {got} bytes alive, expected {right}: a view keeps the whole "
        "buffer. Give the result of the reduce-scatter its own memory"
    ),
    "buffer_kept": (
        "after finish() or step(), {got} bytes of tensors are alive besides weights, shards, and "
        "optimizer states: keep no buffer, and no copy"
    ),
}
NOT_GATHERED = (
    "after step(), this rank has new values only in its own shards: gather those of the other ranks"
)


def named(texts: dict[str, str], mistakes: Mistakes, key: str, **values: object) -> Finding:
    """Return the finding for `texts[key]`, with the key if it is one of the check's mistakes."""
    finding = getattr(Mistakes(**texts), key)(**values)
    return finding if key in mistakes.texts else observed(finding.text)


@dataclass
class Step:
    """A training step on this rank, and the same step on one rank with all samples."""

    trial: Trial
    sizes: list[int]  # of the units
    passes: int
    record: Record
    parameters: Values  # from the shards of all ranks
    gradients: Values
    right: dict[str, Values]  # parameters before and after, the gradient, and wrong gradients

    @property
    def padded(self) -> list[int]:
        """Bytes of each unit's padded buffer."""
        ranks = self.trial.size
        return [8 * ranks * -(-size // ranks) for size in self.sizes]

    @property
    def shard_bytes(self) -> int:
        return sum(self.padded) // self.trial.size

    def gradients_are_right(self, mistakes: Mistakes) -> Finding | None:
        wrong = {key: value for key, value in self.right.items() if key in mistakes.texts}
        return _by_unit(self.gradients, self.right["gradient"], "the gradient", wrong, mistakes)

    def parameters_are_right(self, mistakes: Mistakes) -> Finding | None:
        return _by_unit(self.parameters, self.right["after"], "the updated shard", {}, mistakes)

    def weights_are_right(self, mistakes: Mistakes) -> Finding | None:
        """Require that the model on this rank has all ranks' shards."""
        if self.record.weights is None:
            return observed("the model's parameters have no memory after step()")
        before, after = self.right["before"], self.right["after"]
        own = [b.clone() for b in before]
        for value, updated in zip(own, after, strict=True):
            width = -(-len(updated) // self.trial.size)
            part = slice(self.trial.rank * width, (self.trial.rank + 1) * width)
            value[part] = updated[part]
        wrong = {"not_gathered": own}
        return _by_unit(self.record.weights, after, "the model's weight", wrong, mistakes)

    def gradients_are_freed(self, mistakes: Mistakes) -> Finding | None:
        """Require that a rank keeps the gradients of its shards, but no others and no buffers."""
        if self.record.unfreed:
            return named(FREED, mistakes, "gradients_kept", name=self.record.unfreed[0])
        got, others = self.record.bytes_held["gradients"], self.record.bytes_held["others"]
        if got > SLACK * self.shard_bytes and self.trial.size > 1:
            return named(FREED, mistakes, "whole_kept", got=got, right=self.shard_bytes)
        if others >= 8 * min(self.sizes):  # less than any buffer may be a counter of the learner's
            return named(FREED, mistakes, "buffer_kept", got=others)
        return None

    def sends_at_most(self, times: int) -> Finding | None:
        """Require at most `times` the parameters' bytes, times (N−1)/N, as on a ring."""
        others = self.trial.size - 1
        got = self.record.ring_bytes / (self.shard_bytes * others) if others else 0.0
        if got <= SLACK * times:
            return None
        return observed(
            f"a rank sends {got:.2g} times its parameters' bytes (on a ring, for large N), "
            f"expected at most {times}"
        )


def steps(
    trial: Trial,
    make_optimizer: MakeOptimizer,
    plan: Sequence[Sequence[Sequence[int]]],
    *,
    layers: str = "",
    make_model: Callable = awkward_blocks,
    watch: Watch = lambda *_: {},
    explain: Explain | None = None,
    evaluates: bool = False,
) -> Iterator[Step]:
    """Train with the learner's stage and yield each step. Meanwhile, findings name the step.

    Args:
        plan: numbers of samples by step, backward pass, and rank.
        layers: the model's attribute with the layers that the stage gets; "" for the model itself,
            as one unit. In that case, `finish()` follows only the last pass of a step.
        watch: registers hooks on the model after the stage is created, and returns what they fill.
        evaluates: whether a forward pass without gradients follows each step.
    """
    model = make_model(trial.draw, trial.rank)
    start = trial.gather(copy.deepcopy(model))[0]
    data = [[[tokens(trial.draw, start, n) for n in ranks] for ranks in step] for step in plan]
    own_data = [[ranks[max(trial.rank, 0)] for ranks in step] for step in data]
    # Do this before the learner's code runs, because an optimizer's first step imports much.
    expected = expect(start, _units(start, layers), make_optimizer, data)
    units, given = _units(model, layers), getattr(model, layers) if layers else model
    run = (trial, model, units, given, make_optimizer, own_data, watch, evaluates)
    records = trial.run_function(train, *run, seconds=SECONDS, explain=explain)
    sizes = [sum(p.numel() for p in unit) for unit in units]
    for _, number in trial.cases({f"step {i + 1}": i for i in range(len(plan))}):
        record = records[number] if records else None
        trial.require(lambda: _shard_lengths(record, [-(-size // trial.size) for size in sizes]))
        everyone = trial.gather(record and (record.shards, record.gradients))
        parameters, gradients = (
            [torch.cat(parts)[:size] for *parts, size in zip(*shards, sizes, strict=True)]
            for shards in zip(*everyone, strict=True)
        )
        passes, right = len(plan[number]), expected[number]
        yield Step(trial, sizes, passes, record, parameters, gradients, right)


def _units(model: nn.Module, layers: str) -> Units:
    if not layers:
        return [[p for p in model.parameters() if p.requires_grad]]
    return [own for _, own in own_parameters(getattr(model, layers))]


def _shard_lengths(record: Record, right: list[int]) -> Finding | None:
    got = [len(shard) for shard in record.shards]
    return None if got == right else observed(f"the shards have lengths {got}, expected {right}")


def expect(
    model: nn.Module, units: Units, make_optimizer: MakeOptimizer, data: list[list[list[Shard]]]
) -> list[dict[str, Values]]:
    """Take the same steps on one rank with all samples; see `Step.right`."""
    parameters = [p for unit in units for p in unit]
    optimizer, expected = make_optimizer(parameters), []

    def gradient(shards: list[Shard]) -> Values:
        loss = sum(F.cross_entropy(model(x), y, reduction="sum") for x, y in shards)
        parts = iter(
            torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        )
        return [torch.cat([next(parts).flatten() for _ in unit]) for unit in units]

    for passes in data:
        ranks = range(len(passes[0]))
        whole = gradient([shard for each in passes for shard in each])
        local = [gradient([each[rank] for each in passes]) for rank in ranks]
        for unit, vector in zip(units, whole, strict=True):
            parts = vector.split([p.numel() for p in unit])
            for parameter, part in zip(unit, parts, strict=True):
                parameter.grad = part.view_as(parameter)
        right = {
            "gradient": whole,
            "not_reduced": [torch.zeros_like(unit) for unit in whole],
            "not_summed": [_own_parts(parts) for parts in zip(*local, strict=True)],
            "averaged_again": [unit / len(ranks) for unit in whole],
            "overwritten": gradient(passes[-1]),
            "before": [parameter_vector(unit) for unit in units],
        }
        optimizer.step()
        expected.append(right | {"after": [parameter_vector(unit) for unit in units]})
    return expected


def _own_parts(per_rank: tuple[Tensor, ...]) -> Tensor:
    """Return the tensor that has part r of rank r's tensor, for every r."""
    width = -(-len(per_rank[0]) // len(per_rank))
    return torch.cat([v[r * width : (r + 1) * width] for r, v in enumerate(per_rank)])


def _by_unit(
    got: Values, right: Values, name: str, wrong: dict[str, Values], mistakes: Mistakes
) -> Finding | None:
    """Name the mistake that computes all of `got`, or the first unit and index that differ."""
    variants = {key: torch.cat(values) for key, values in wrong.items()}
    finding = explained(torch.cat(got), torch.cat(right), variants, mistakes, name, TOLERANCE)
    if finding is None or finding.mistake or len(got) == 1:
        return finding
    units = enumerate(zip(got, right, strict=True))
    differences = (equal(a, b, f"{name} of units[{i}]", TOLERANCE) for i, (a, b) in units)
    return next(filter(None, differences))
