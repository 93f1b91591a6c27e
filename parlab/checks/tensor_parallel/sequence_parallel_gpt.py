"""Exercise `sequence_parallel_gpt`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import gpt, layers, requirements
from parlab.checks.tensor_parallel.layers import ACTIVATION_SLACK, Passed, Share
from parlab.checks.trial import Trial
from parlab.costs import tensor_parallel as costs

MISTAKES = Mistakes(
    shards_summed=(
        "the gradient of {name} is summed over the ranks: each rank has another part of that "
        "weight, and the sum mixes them. finish() sums what is whole on every rank"
    ),
    averaged=(
        "the gradient of {name} is 1/{ranks} of what is right: the ranks' parts of the sequence "
        "are added, and not averaged"
    ),
    positions=(
        "every rank adds the positions from 0 on: rank r has the r-th part of the sequence, and "
        "its positions"
    ),
    all_reduced=(
        "the {which} pass has an all-reduce of {got} bytes: sequence parallelism gathers and "
        "scatters instead, and gradients of whole parameters are summed by finish()"
    ),
    keeps_whole=(
        "{got} bytes of activations are kept where {right} are expected: something between the "
        "products has the whole sequence"
    ),
    whole_sequence=(
        "`{name}` works on {got} where {right} is right: between the products a rank has its part "
        "of the sequence"
    ),
    none_filled=(
        "{name} took no part and had no gradient, and finish() has given it one: leave out "
        "parameters whose `.grad` is None"
    ),
    too_much_finished="finish() sends {got} bytes where the whole parameters have {right}",
    **{key: gpt.MISTAKES.texts[key] for key in ("untied", "partial_gradient")},
    **requirements.texts("not_refused"),
)
WHERE = (
    "finish() adds up the gradients of what is whole on every rank and saw a part of the sequence"
)


@check_of(MISTAKES)
def sequence_parallel_gpt(check: Check) -> str:
    """Check shares, scores, gradients after finish(), traffic and what is kept."""
    for number, trial in enumerate(check.trials()):
        for grouped in (False, True) if number == 0 else (bool(number % 2),):
            told = "grouped queries" if grouped else "as many keys as heads"
            trial.situation = f"{trial.size} ranks, {told}"
            _one(trial, gpt.Case(trial, grouped=grouped, shorter=grouped))
        frozen = " and ".join(FROZEN)
        trial.situation = (
            f"{trial.size} ranks, two passes of a model, {frozen} frozen in the second"
        )
        _twice(trial, gpt.Case(trial, grouped=False))
        trial.situation = f"{trial.size} ranks"
        config = gpt.config_for(trial, False)
        model = layers.seeded(1, lambda config=config: gpt.models.GPT(config))
        tokens = torch.zeros(1, 2 * trial.size + 1, dtype=torch.int64)
        requirements.refusal(
            trial,
            lambda model=model, tokens=tokens: check.function(model, trial.group)(tokens),
            f"{2 * trial.size + 1} tokens",
            [2 * trial.size + 1],
        )
    return (
        "scores and gradients of the serial GPT; no all-reduce but in finish(); a rank keeps its "
        f"part of the sequence, on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, case: gpt.Case) -> None:
    shapes: list[tuple[str, tuple[int, ...]]] = []
    passed = gpt.run(
        trial,
        case,
        lambda model: watched(trial.check.function(model, trial.group), shapes),
        finish=True,
    )
    everyone = trial.gather(passed)
    whole = sum(
        case.right.gradients[name].nbytes for name, share in case.shares.items() if share is None
    )
    shifted = first_positions(case, trial)
    trial.require(
        lambda: None if passed.tied else MISTAKES.untied(),
        lambda: requirements.holds_its_share(passed, case.right, case.shares, trial),
        lambda: requirements.untouched(passed, "`tokens`"),
        lambda: (
            MISTAKES.positions()
            if trial.size > 1 and same(passed.output, shifted, TOLERANCE)
            else None
        ),
        lambda: gpt.scores_are(passed, case.right, trial),
        lambda: gpt.gradients_are(
            passed, case, everyone, trial, WHERE, lambda *one: known(*one, case, trial)
        ),
        lambda: on_parts(shapes, case, trial),
        lambda: traffic(passed, case, whole, trial),
        lambda: kept(passed, case, trial),
    )


def watched(model: nn.Module, shapes: list[tuple[str, tuple[int, ...]]]) -> nn.Module:
    """Notes what blocks and last norm are given."""

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, given: shapes.append((name, tuple(given[0].shape)))

    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if name == "norm" or name.rpartition(".")[0] == "blocks":
            module.register_forward_pre_hook(note(name))
    return model


def on_parts(
    shapes: list[tuple[str, tuple[int, ...]]], case: gpt.Case, trial: Trial
) -> Finding | None:
    batch, sequence = case.tokens.shape
    right = (batch, sequence // trial.size, case.config.hidden_size)
    for name, got in shapes:
        if got != right:
            return MISTAKES.whole_sequence(name=name, got=got, right=right)
    return None


FROZEN = ("positions.weight", "norm.bias")


def _twice(trial: Trial, case: gpt.Case) -> None:
    """Two passes of one model; in the second, some parameters take no part."""

    def run() -> list[dict[str, Tensor | None]]:
        whole = case.serial()
        names = [name for name, _ in whole.named_parameters()]
        model = trial.check.function(whole, trial.group)
        seen = []
        for frozen in ((), FROZEN):
            model.zero_grad(set_to_none=True)
            named = layers.named_as(model, names)
            for name in frozen:
                named[name].requires_grad_(False)
            mine = Share(-1).of(case.weights, trial.rank, trial.size)
            layers.weighing(mine)(model(case.tokens)).backward()
            model.finish()
            seen.append({n: None if p.grad is None else p.grad.clone() for n, p in named.items()})
        return seen

    both = trial.run_function(run, seconds=layers.SECONDS)

    def again() -> Finding | None:
        first, second = both
        for name, right in first.items():
            if name in FROZEN:
                if second[name] is not None:
                    return MISTAKES.none_filled(name=name)
            elif found := equal(
                second[name], right, f"the gradient of {name}, at a second pass", TOLERANCE
            ):
                return found
        return None

    trial.require(again)


def first_positions(case: gpt.Case, trial: Trial) -> Tensor:
    """The scores that come out where every rank adds the first positions to its part."""
    model = case.serial()
    part = case.tokens.shape[1] // trial.size
    with torch.no_grad():
        first = model.positions.weight[:part].repeat(trial.size, 1)
        model.positions.weight[: len(first)] = first
        return Share(-1).of(model(case.tokens), max(trial.rank, 0), trial.size)


def known(name: str, got: Tensor, own: Tensor, case: gpt.Case, trial: Trial) -> Finding | None:
    n, share, whole = trial.size, case.shares[name], case.right.gradients[name]
    if n == 1 or got.shape != own.shape:
        return None
    if share is not None:
        total = sum(share.of(whole, r, n) for r in range(n))
        if same(got, total, TOLERANCE):
            return MISTAKES.shards_summed(name=name)
    if same(got * n, own, TOLERANCE):
        return MISTAKES.averaged(name=name, ranks=n)
    return None


def traffic(passed: Passed, case: gpt.Case, whole: int, trial: Trial) -> Finding | None:
    """Gathers and reduce-scatters of (batch, seq, h); at the end, sums of whole parameters."""
    if trial.size == 1:
        return None
    for which, calls in (("forward", passed.forward), ("backward", passed.backward)):
        if reduces := [call for call in calls if call.op == "all_reduce"]:
            return MISTAKES.all_reduced(which=which, got=requirements.total(reduces))
    if requirements.sends_too_much(passed.finished, whole, trial.size):
        return MISTAKES.too_much_finished(got=requirements.total(passed.finished), right=whole)
    both = 2 * gpt.LAYERS + 1
    # Forward: a gather for each product cut by columns, a scatter for each by rows, the embedding's
    # too. Backward each of them once more, and the gathers again.
    limits = {"forward": 2 * both * case.hidden_bytes, "backward": 3 * both * case.hidden_bytes}
    for which, calls in (("forward", passed.forward), ("backward", passed.backward)):
        if (sent := requirements.total(calls)) > limits[which]:
            return evidence(f"the {which} pass sends {sent} bytes where {limits[which]} are enough")
    return None


def kept(passed: Passed, case: gpt.Case, trial: Trial) -> Finding | None:
    """Activations of the blocks, of the last norm and the output layer; and the tokens."""
    sequence, hidden = case.tokens.shape[1], case.config.hidden_size
    blocks = gpt.LAYERS * costs.block_in_numbers(2, sequence, hidden, trial.size, 8)[
        "sequence_parallel"
    ]  # fmt: skip
    ends = 8 * 2 * sequence * (3 * hidden) / trial.size + 64 * 2 * sequence
    small = gpt.LAYERS * 8 * 2 * sequence * (4 / trial.size + case.config.heads / trial.size)
    right = blocks + ends + small
    if trial.size > 1 and passed.kept > ACTIVATION_SLACK * right:
        return MISTAKES.keeps_whole(got=passed.kept, right=round(right))
    return None
