"""Exercise `parallel_gpt`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.tensor_parallel import gpt, layers
from parlab.checks.trial import Trial
from parlab.ledger import Call

MISTAKES = Mistakes(
    too_many_messages=(
        "the {which} pass sends {got} bytes where {right} are enough: one all-reduce for each "
        "attention, each MLP, and for the {end}"
    ),
    **gpt.MISTAKES.texts,
    **layers.texts("whole_weights", "reduced_again"),
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
    return (
        "this rank's share of every weight, scores and gradient of the serial GPT, and one "
        f"all-reduce each way for each attention and MLP, on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, case: gpt.Case) -> None:
    passed = gpt.run(
        trial, case, lambda model: trial.check.function(model, trial.group), in_place=True
    )
    everyone = trial.gather(passed)
    right = (2 * gpt.LAYERS + 1) * case.hidden_bytes
    trial.require(
        lambda: None if passed.tied else MISTAKES.untied(),
        lambda: layers.holds_its_share(passed, case.right, case.shares, trial),
        lambda: layers.untouched(passed, "`tokens`"),
        lambda: gpt.scores_are(passed, case.right, trial),
        lambda: gpt.gradients_are(passed, case, everyone, trial, WHERE),
        lambda: traffic(passed.forward, right, "forward", "embedding"),
        lambda: traffic(passed.backward, right, "backward", "output layer"),
    )


def traffic(calls: list[Call], right: int, which: str, end: str) -> Finding | None:
    got = layers.total(calls)
    if got > 1.02 * right:
        return MISTAKES.too_many_messages(which=which, got=got, right=right, end=end)
    return None
