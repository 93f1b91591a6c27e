"""Exercise `parallel_gpt`."""

from collections.abc import Callable

from torch import nn

from parlab import models
from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.tensor_parallel import gpt, layers, requirements
from parlab.checks.trial import Trial
from parlab.ledger import Call

MISTAKES = Mistakes(
    too_many_messages=(
        "the {which} pass sends {got} bytes, and {times} all-reduces of {right} are enough: one "
        "for each attention, each MLP, and for the {end}"
    ),
    block_not_returned=(
        "`parallel_block` returns {got}: it changes the block that it is given, and returns it"
    ),
    block_classes=(
        "`parallel_block` is given two other classes, and makes {got} of its two pairs of layers "
        "with them: attention and MLP get both, `column` and `row`"
    ),
    **gpt.MISTAKES.texts,
    **requirements.texts("whole_weights", "reduced_again"),
)
WHERE = (
    "Gradients become whole where an f is passed: is there one before every product cut by "
    "columns, the output layer's too?"
)


@check_of(MISTAKES)
def parallel_gpt(check: Check) -> str:
    """Check shares, scores, gradients and traffic of the whole model, plain and grouped."""
    for number, trial in enumerate(check.trials()):
        for grouped in (False, True) if number == 0 else (bool(number % 2),):
            told = "grouped queries" if grouped else "as many keys as heads"
            trial.situation = f"{trial.size} ranks, {told}"
            _one(trial, gpt.Case(trial, grouped=grouped, shorter=grouped))
        if number == 0:
            _block(trial)
    return (
        "this rank's share of every weight, scores and gradient of the serial GPT, and one "
        f"all-reduce each way for each attention and MLP, on 1 to {check.world_size} ranks"
    )


def _block(trial: Trial) -> None:
    """What stands beside `parallel_gpt` in its cell: part C cuts blocks with other classes."""
    parallel_block = getattr(trial.check.function, "__globals__", {}).get("parallel_block")
    if parallel_block is None:
        return
    block = models.Block(gpt.config_for(trial, False))
    made: list[str] = []

    def noted(name: str) -> Callable[..., nn.Module]:
        def make(linear: nn.Linear, group: object, *more: object, **named: object) -> nn.Module:
            made.append(name)
            return nn.Identity()

        return make

    got = trial.run_function(parallel_block, block, trial.group, noted("column"), noted("row"))
    trial.require(
        lambda: None if got is block else MISTAKES.block_not_returned(got=layers.told(got)),
        lambda: (
            None
            if sorted(made) == ["column", "column", "row", "row"]
            else MISTAKES.block_classes(got=min(made.count("column"), made.count("row")))
        ),
    )


def _one(trial: Trial, case: gpt.Case) -> None:
    passed = gpt.run(
        trial, case, lambda model: trial.check.function(model, trial.group), in_place=True
    )
    everyone = trial.gather(passed)
    trial.require(
        lambda: None if passed.tied else MISTAKES.untied(),
        lambda: requirements.holds_its_share(passed, case.right, case.shares, trial),
        lambda: requirements.untouched(passed, "`tokens`"),
        lambda: gpt.scores_are(passed, case.right, trial),
        lambda: gpt.gradients_are(passed, case, everyone, trial, WHERE),
        lambda: traffic(passed.forward, case, trial, "forward", "embedding"),
        lambda: traffic(passed.backward, case, trial, "backward", "output layer"),
    )


def traffic(
    calls: list[Call], case: gpt.Case, trial: Trial, which: str, end: str
) -> Finding | None:
    size, times = case.hidden_bytes, 2 * gpt.LAYERS + 1
    if requirements.sends_too_much(calls, size, trial.size, times):
        return MISTAKES.too_many_messages(
            which=which, got=requirements.told_calls(calls), times=times, right=size, end=end
        )
    return None
