"""Exercise `sequence_parallel_gpt`."""

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _gpt as gpt
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel import _passes as passes
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, Run, gradient_of
from parlab.costs import tensor_parallel as costs

ACTIVATION_SLACK = 1.1  # small tensors, such as the norms' means, are not counted
FROZEN = ("positions.weight", "norm.bias")

MISTAKES = Mistakes(
    not_summed=(
        "{wrong}. finish() sends {got}, but the gradients of parameters that are whole on all "
        "ranks have {size} bytes: each rank saw only a part of the sequence, so add them up"
    ),
    shards_summed=(
        "it is summed over the ranks, which have different parts of this weight: finish() must sum "
        "only parameters that are whole on every rank"
    ),
    all_reduced=(
        "the {which} pass sends {got}: sequence parallelism uses all-gathers and reduce-scatters "
        "instead, and finish() sums the gradients of whole parameters"
    ),
    keeps_whole=(
        "{got} bytes of activations are kept, expected {right}: does anything between the "
        "products have the whole sequence?"
    ),
    **gpt.MISTAKES.texts,
    **layers.texts("sends_more"),
)


@check_of(MISTAKES)
def sequence_parallel_gpt(check: Check) -> str:
    """Check shares, scores, gradients after finish(), calls, and kept bytes."""
    for number, trial in enumerate(check.trials()):
        frozen = {f"{' and '.join(FROZEN)} frozen in the second of two passes": None}
        for _, grouped in trial.cases({**gpt.GROUPED, **frozen}):
            if grouped is None:
                _frozen(trial)
            elif number == 0 or grouped == bool(number % 2):
                _model(trial, grouped)
        uneven = 2 * trial.size + 1
        make, tokens = gpt.made(trial, gpt.config(trial)), torch.zeros(1, uneven, dtype=torch.int64)
        passes.refuses(
            trial,
            lambda make=make, tokens=tokens, trial=trial: check.function(make(), trial.group)(
                tokens
            ),
            f"{uneven} tokens",
            [uneven],
        )
    return (
        "scores and gradients of the serial GPT; no all-reduce but in finish(); a rank keeps its "
        f"part of the sequence, on 1 to {check.world_size} ranks"
    )


def _model(trial: Trial, grouped: bool) -> None:
    shapes: dict[str, tuple[int, ...]] = {}

    def cut(model: nn.Module) -> nn.Module:
        """Make the learner's model. Record the shapes of inputs to blocks and the last norm."""
        model = trial.check.function(model, trial.group)
        for name, module in model.named_modules():
            if name == "norm" or name.rpartition(".")[0] == "blocks":
                module.register_forward_pre_hook(
                    lambda _, given, name=name: shapes.update({name: tuple(given[0].shape)})
                )
        return model

    def on_parts() -> Finding | None:
        shape = (2, case.x.shape[1] // trial.size, 4 * trial.size)
        wrong = [f"{name} gets {got}" for name, got in shapes.items() if got != shape]
        return observed(f"{wrong[0]}, expected {shape}, a part of the sequence") if wrong else None

    case = gpt.case(trial, MISTAKES, grouped, cut=cut)
    case.finish = True
    case.wrong = lambda right, _, ranks: [
        (name, "shards_summed", sum(case.share(name).of(whole, r, ranks) for r in range(ranks)))
        for name, whole in right.items()
        if name != OUTPUT and case.share(name) is not layers.WHOLE
    ]
    run = layers.compare(trial, case)
    trial.require(
        on_parts,
        lambda: _calls(run, case, trial),
        lambda: _kept(run, case.x, trial),
    )


def _calls(run: Run, case: layers.Case, trial: Trial) -> Finding | None:
    """Require gathers and reduce-scatters of (batch, seq, h) in both passes."""
    if trial.size == 1:
        return None
    both = (2 * gpt.LAYERS + 1) * 8 * case.x.numel() * 4 * trial.size  # (batch, seq, h) each
    # The backward pass repeats the gathers of the forward pass.
    for which, limit in (("forward", 2 * both), ("backward", 3 * both)):
        calls = run.calls[which]
        if any(call.op == "all_reduce" for call in calls):
            return MISTAKES.all_reduced(which=which, got=passes.calls_text(calls))
        if passes.total(calls) > limit:
            sent = passes.calls_text(calls)
            return observed(f"the {which} pass sends {sent}, but {limit} bytes are enough")
    return None


def _kept(run: Run, tokens: Tensor, trial: Trial) -> Finding | None:
    """Check the kept bytes: activations of blocks, last norm, and output layer, and the tokens."""
    sequence, hidden, n = tokens.shape[1], 4 * trial.size, trial.size
    blocks = costs.block_in_numbers(2, sequence, hidden, n, 8)["sequence_parallel"]
    ends = 8 * 2 * sequence * 3 * hidden / n + 64 * 2 * sequence
    small = gpt.LAYERS * 8 * 2 * sequence * (4 + 2 * n) / n
    right = gpt.LAYERS * blocks + ends + small
    if n > 1 and run.kept > ACTIVATION_SLACK * right:
        return MISTAKES.keeps_whole(got=run.kept, right=round(right))
    return None


def _frozen(trial: Trial) -> None:
    """Check two passes of one model. In the second, some parameters are frozen."""
    case = gpt.case(trial, MISTAKES, False)

    def run() -> list[dict[str, Tensor | None]]:
        model, found = trial.check.function(case.make(), trial.group), []
        for frozen in ((), FROZEN):
            model.zero_grad(set_to_none=True)
            named = layers.named_as(model, case.shares)
            for name in frozen:
                named[name].requires_grad_(False)
            model(case.x).square().sum().backward()
            model.finish()
            found.append({n: None if p.grad is None else p.grad.clone() for n, p in named.items()})
        return found

    both = trial.run_function(run, seconds=SECONDS)

    def again() -> Finding | None:
        first, second = both
        for name in FROZEN:
            if second[name] is not None:
                return observed(
                    f"{name} is frozen, but finish() gives it a gradient: leave it None"
                )
        trained = [name for name in first if name not in FROZEN]
        got, right = ({gradient_of(name): one[name] for name in trained} for one in (second, first))
        return passes.values_are(got, right, [], MISTAKES)

    trial.require(again)
