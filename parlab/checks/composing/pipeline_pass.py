"""Exercise `pipeline_pass`: its gradients are compared with those of the serial model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.composing import _steps as meshes
from parlab.ledger.calls import SENDS
from parlab.models import GPT
from parlab.parallel_gpt import Stage
from parlab.sharding import flat_buffers

MISTAKES = Mistakes(
    sum_of_losses=(
        "this is the gradient of the sum of the micro-batches' losses. The loss is their mean, so "
        "each of them counts 1/M"
    ),
    overwrites=(
        "the numbers that were in `.grad` are gone. Add the new gradient to them: do not set "
        "`.grad` to zero or None"
    ),
    gradient_replaced=(
        "`.grad` of {name} was replaced or set to None, but the caller keeps all gradients in one "
        "buffer. Let `backward` add to `.grad`"
    ),
    one_at_a_time=(
        "stage {stage} of {stages} waits for its first gradient after {got} of {m} forward passes, "
        "expected after at least {right}. Otherwise, later stages are idle"
    ),
    keeps_graph="the result is part of autograd's graph, which keeps tensors alive. Detach it",
    wrong_messages="stage {stage} sends {got}, expected {right}",
)
SIZES = {  # micro-batches, samples of each
    "3 micro-batches": (3, 2),
    "1 micro-batch": (1, 3),
    "6 micro-batches of 1 sample": (6, 1),
}


@check_of(MISTAKES)
def pipeline_pass(check: Check) -> str:
    """Check loss, gradients, schedule, and messages on pipelines with and without other groups."""
    for trial in meshes.trials(check):
        n = trial.size
        layouts = [{"dp": 1, "pp": n, "tp": 1}]
        if n % 2 == 0:
            layouts.append({"dp": 1, "pp": n // 2, "tp": 2})
        cases = {
            f"{n} stage{'s' * (n > 1)}, {name}": (layouts[0], sizes)
            for name, sizes in SIZES.items()
        }
        for mesh in layouts[1:]:
            cases[f"{mesh['pp']} stages × 2 tp, 3 micro-batches"] = mesh, (3, 2)
        for _, (mesh, sizes) in trial.cases(cases):
            _case(trial, mesh, *sizes)
    return (
        "loss and gradients of the serial model, each micro-batch computed once, a filled "
        f"pipeline, and one message each way at each cut, on 1 to {check.world_size} ranks"
    )


@dataclass
class Run:
    """The results of the call on a rank."""

    result: Any
    gradient: Tensor
    replaced: str  # the name of a parameter whose .grad has other memory
    events: list[str]  # "F" and "B" in the order in which the stage ran them
    samples: list[int]  # of each forward pass


def _case(trial: Trial, mesh: meshes.Mesh, m: int, samples: int) -> None:
    tokens, targets = meshes.draw_tokens(trial.draw, m, samples)
    seed, before = trial.draw.getrandbits(31), trial.draw.getrandbits(31)
    with meshes.groups_of(trial, mesh) as groups:
        stage, given, run = None, (tokens.clone(), targets.clone()), None
        if trial.takes_part:
            stage, serial = meshes.stage_of(mesh, trial.rank, groups, seed)
            weights = meshes.flat(dict(stage.named_parameters()))
        run = trial.run_function(
            _observed, trial, stage, *given, groups, before, seconds=meshes.SECONDS
        )

    def values() -> Finding | None:
        gradient, mean = _serial(stage, serial, tokens, targets)
        start = _start(weights, before)
        wrong = {"overwrites": gradient, "sum_of_losses": start + m * gradient}
        result = mean if stage.last else torch.zeros(())
        name = "the gradient of this stage's parameters"
        return explained(
            run.gradient, start + gradient, wrong, MISTAKES, name, meshes.TOLERANCE
        ) or equal(run.result, result, tolerance=meshes.TOLERANCE)

    place = groups["pp"].rank() if trial.takes_part else 0
    trial.require(
        lambda: equal(meshes.flat(dict(stage.named_parameters())), weights, "the stage's weight"),
        lambda: unchanged("`tokens_MbS`", given[0], tokens),
        lambda: unchanged("`targets_MbS`", given[1], targets),
        lambda: MISTAKES.gradient_replaced(name=run.replaced) if run.replaced else None,
        values,
        lambda: MISTAKES.keeps_graph() if run.result.requires_grad else None,
        lambda: _once(run, m, samples),
        lambda: _filled(run, place, mesh["pp"], m),
        lambda: _messages(trial, stage, place, m, samples),
    )


def _observed(
    trial: Trial,
    stage: Stage,
    tokens: Tensor,
    targets: Tensor,
    groups: Mapping[str, Any],
    before: int,
) -> Run:
    """Run the function on a stage whose gradients are already in a buffer."""
    parameters = dict(stage.named_parameters())
    _, gradient = flat_buffers(list(parameters.values()), 1)
    gradient += _start(gradient, before)
    places = {name: p.grad.data_ptr() for name, p in parameters.items()}
    events: list[str] = []
    sizes: list[int] = []

    def record(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        events.append("F")
        sizes.append(len(inputs[0]))
        if output.requires_grad:
            output.register_hook(lambda _: events.append("B"))

    handle = stage.register_forward_hook(record)
    result = trial.check.function(stage, tokens, targets, groups["pp"])
    handle.remove()
    replaced = [
        n for n, p in parameters.items() if p.grad is None or p.grad.data_ptr() != places[n]
    ]
    return Run(result, gradient.clone(), replaced[0] if replaced else "", events, sizes)


def _start(like: Tensor, seed: int) -> Tensor:
    """Return the numbers in `.grad` before the call."""
    return torch.rand(len(like), generator=torch.Generator().manual_seed(seed))


def _serial(stage: Stage, serial: GPT, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return this stage's part of the mean's gradient, and the mean loss.

    For the embedding, this is the gradient from the stage's own use of it.
    """
    gradients, losses = [], []
    for inputs, labels in zip(tokens, targets, strict=True):
        loss, _, alone = meshes.loss_and_gradients(stage, serial, inputs, labels)
        gradients.append(meshes.flat(stage.part_of(alone)))
        losses.append(loss)
    return sum(gradients) / len(losses), sum(losses) / len(losses)


def _once(run: Run, m: int, samples: int) -> Finding | None:
    if run.samples == [samples] * m:
        return None
    return observed(
        f"the stage computes {len(run.samples)} times forward, with {sum(run.samples)} samples, "
        f"expected once for each of {m} micro-batches, with {m * samples} samples"
    )


def _filled(run: Run, stage: int, stages: int, m: int) -> Finding | None:
    """Require enough forward passes before the first backward pass."""
    got = run.events.index("B") if "B" in run.events else len(run.events)
    right = min(stages - stage, m)
    if got >= right:
        return None
    return MISTAKES.one_at_a_time(stage=stage, stages=stages, got=got, right=right, m=m)


def _messages(trial: Trial, stage: Stage, place: int, m: int, samples: int) -> Finding | None:
    size = 4 * math.prod(stage.activation_shape(samples))
    to = [] if stage.last else [place + 1] * m
    back = [] if stage.first else [place - 1] * m
    right = sorted((other, size) for other in (*to, *back))
    calls = [call for call in trial.calls[trial.rank] if call.op in SENDS and call.bytes_sent]
    got = sorted((call.to, call.bytes_sent) for call in calls)
    if got == right:
        return None
    return MISTAKES.wrong_messages(stage=place, got=_text(got), right=_text(right))


def _text(messages: list[tuple[int, int]]) -> str:
    counts = {message: messages.count(message) for message in messages}
    shown = (f"{n} messages of {size} bytes to stage {to}" for (to, size), n in counts.items())
    return ", ".join(shown) or "nothing"
