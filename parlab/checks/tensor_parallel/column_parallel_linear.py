"""Exercise `column_parallel_linear`."""

import torch
from torch import nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import layers, requirements
from parlab.checks.tensor_parallel.layers import Passed, Right, Share, passes, random, seeded
from parlab.checks.trial import Trial
from parlab.checks.untouched import unchanged

MISTAKES = Mistakes(
    rows_split=(
        "weight has shape {got}: that cuts the inputs, which is the product by rows. PyTorch keeps "
        "(outputs, inputs), so columns of the matrix are the first dimension"
    ),
    fused_as_one=(
        "{name} has the {rank}-th part of all outputs together: `sections` are several matrices "
        "side by side, and each is to be cut by itself"
    ),
    output_gathered=(
        "the output has all {got} outputs on this rank: each keeps its own, and nobody asks for "
        "the rest"
    ),
    **requirements.texts(
        "no_reduce_backward",
        "reduced_again",
        "whole_weights",
        "weights_gathered",
        "not_own_memory",
        "memory_of_serial",
        "strided",
        "sends_more",
        "kept_whole",
        "not_refused",
        "sent_before_refusing",
    ),
)


@check_of(MISTAKES)
def column_parallel_linear(check: Check) -> str:
    """Check parameters, output, gradients, memory and calls; with sections, without a bias."""
    for trial in check.trials():
        n, pick = trial.size, trial.draw.randrange
        some = [n * pick(1, 4) for _ in range(3)]
        for bias, sections, shape in [
            (True, None, (3, 2)),
            (True, [some[0], some[1], some[0] + some[2]], (2, 3)),
            (False, None, (5,)),
        ]:
            what = f"sections {sections}" if sections else "one section"
            trial.situation = f"{n} ranks, {what}, {'with' if bias else 'without'} bias"
            _one(trial, sections, n * pick(2, 5), bias, shape)
        trial.situation = f"{n} ranks"
        for outputs, sections in [
            (3 * n + 1, None),
            (4 * n, [2 * n + 1, 2 * n - 1]),
            (5 * n, [n, 2 * n + 1, 2 * n - 1]),
        ]:
            linear = nn.Linear(3, outputs)
            given = [sections] if sections else []
            requirements.refusal(
                trial,
                lambda linear=linear, given=given: check.function(linear, trial.group, *given),
                f"{outputs} outputs in sections of {sections}"
                if sections
                else f"{outputs} outputs",
                sections or [outputs],
            )
    return (
        "each rank has its outputs, of each section, in memory of its own; x's gradient is whole; "
        f"nothing is sent forward, on 1 to {check.world_size} ranks"
    )


def _one(
    trial: Trial, sections: list[int] | None, outputs: int, bias: bool, shape: tuple[int, ...]
) -> None:
    outputs = sum(sections) if sections else outputs
    inputs, seed = 2 * trial.size, trial.draw.getrandbits(32)
    x = random(trial.draw, *shape, inputs)
    weights = random(trial.draw, *shape, outputs)
    share = Share(-1, tuple(sections or ()))
    mine = share.of(weights, max(trial.rank, 0), trial.size)

    def serial() -> nn.Module:
        return seeded(seed, lambda: nn.Linear(inputs, outputs, bias=bias))

    right = layers.serially(serial(), x, layers.weighing(weights))
    given = [list(sections)] if sections else []

    def cut(linear: nn.Module) -> nn.Module:
        return trial.check.function(linear, trial.group, *given)

    passed = trial.run_function(
        passes, trial, serial, cut, x, layers.weighing(mine), seconds=layers.SECONDS
    )
    rows = Share(0, tuple(sections or ()))
    shares = {"weight": rows, "bias": rows}
    everyone = trial.gather(passed)
    trial.require(
        lambda: instead(passed, right, rows, trial),
        lambda: requirements.holds_its_share(passed, right, shares, trial),
        lambda: requirements.untouched(passed),
        lambda: unchanged("`sections`", given, [sections] if sections else []),
        lambda: requirements.sends(passed.forward, 0, trial.size, "forward", passed_bytes(right)),
        lambda: output_is(passed, right, share, trial),
        lambda: requirements.gradient_is(
            passed.input_gradient, right.input_gradient, [p.input_gradient for p in everyone], "x"
        ),
        lambda: requirements.gradients_are(passed, right, shares, everyone, trial),
        lambda: requirements.sends(passed.backward, x.nbytes, trial.size, "backward"),
    )


def passed_bytes(right: Right) -> int:
    return max(p.nbytes for p in right.parameters.values())


def instead(passed: Passed, right: Right, rows: Share, trial: Trial) -> Finding | None:
    """The parameters, where a wrong cut is known."""
    if trial.size == 1:
        return None
    for name, whole in right.parameters.items():
        got, own = passed.parameters.get(name), rows.of(whole, trial.rank, trial.size)
        if got is None or same(got, own):
            continue
        if name == "weight" and got.shape == (whole.shape[0], whole.shape[1] // trial.size):
            return MISTAKES.rows_split(got=tuple(got.shape))
        if rows.sections and same(got, Share(0).of(whole, trial.rank, trial.size)):
            return MISTAKES.fused_as_one(name=name, rank=trial.rank)
        parts = whole.split(list(rows.sections) or [len(whole)])
        if same(got, torch.cat([part[trial.rank :: trial.size] for part in parts])):
            return MISTAKES.strided(name=name, which="outputs")
    return None


def output_is(passed: Passed, right: Right, share: Share, trial: Trial) -> Finding | None:
    if not isinstance(passed.output, torch.Tensor):
        return evidence(f"the output is a {type(passed.output).__name__}")
    own = share.of(right.output, trial.rank, trial.size)
    if passed.output.shape == right.output.shape != own.shape:
        return MISTAKES.output_gathered(got=passed.output.shape[-1])
    return equal(passed.output, own, "the output", TOLERANCE)
