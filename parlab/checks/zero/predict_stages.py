"""Exercise `predict_stages`."""

from collections.abc import Iterator

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.costs.zero import FLOAT32_ADAM, MIXED_ADAM, total

NAMES = ("plain", "stage_1", "stage_2", "stage_3")

MISTAKES = Mistakes(
    no_states="{name}: that leaves out Adam's states, two float32 numbers for each parameter",
    one_moment="{name}: Adam keeps two moments for each parameter, not one",
    mixed=(
        "{name}: that is mixed precision, with 2 bytes of parameters and of gradients and 12 of "
        "optimizer states. Here everything is float32"
    ),
    stage_before="{name}: that is what the stage before it leaves",
    one_kind=(
        "{name}: that shards one kind alone. Each stage shards one kind more, and what the stages "
        "before it shard"
    ),
    all_ranks="{name}: that is what all ranks hold together. What does one hold?",
    numbers="{name}: that counts numbers. A float32 takes 4 bytes",
)


@check_of(MISTAKES)
def predict_stages(check: Check) -> str:
    """Compare with the closed forms, for several sizes and numbers of ranks."""
    with check.trial() as trial:
        for ranks in (4, trial.draw.randrange(5, 70), 1):
            parameters = ranks * trial.draw.randrange(1000, 10**6)
            trial.situation = f"Ψ = {parameters:,}, N = {ranks}"
            predicted = trial.run(parameters, ranks)
            right = {
                name: total(parameters, ranks, stage, FLOAT32_ADAM)
                for stage, name in enumerate(NAMES)
            }
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, wrong_numbers(right, parameters, ranks)),
                lambda: first_wrong(predicted, right, "what the formula gives"),
            )
    return "16Ψ; 8Ψ + 8Ψ/N; 4Ψ + 12Ψ/N; 16Ψ/N"


def wrong_numbers(right: dict[str, float], parameters: int, ranks: int) -> Iterator[Wrong]:
    for stage, name in enumerate(NAMES if ranks > 1 else ()):  # on one rank all stages are alike
        split = parameters / (ranks if stage >= 1 else 1)  # optimizer states of one number
        yield name, right[name] - 8 * split, MISTAKES.no_states(name=name)
        yield name, right[name] - 4 * split, MISTAKES.one_moment(name=name)
        yield name, total(parameters, ranks, stage, MIXED_ADAM), MISTAKES.mixed(name=name)
        if stage:
            yield name, right[NAMES[stage - 1]], MISTAKES.stage_before(name=name)
        if stage >= 2:
            yield name, 12 * parameters + 4 * split, MISTAKES.one_kind(name=name)
        yield name, right[name] * ranks, MISTAKES.all_ranks(name=name)
        yield name, right[name] / 4, MISTAKES.numbers(name=name)
