"""Exercise `naive_step`."""

from functools import partial

from parlab.checks.base.check import Check, check_of
from parlab.checks.pipeline_parallel import _requirements, _steps
from parlab.checks.pipeline_parallel._models import Case, mean_square
from parlab.pipeline import backward, forward


@check_of(_requirements.MISTAKES)
def naive_step(check: Check) -> str:
    """Check loss, gradients, weights, and messages of a step, with one stage per rank."""
    for trial in check.trials():
        n, function, group = trial.size, check.function, trial.group
        schedule = [[forward(r, 0), backward(r, 0)] for r in range(n)]
        make = partial(Case, trial, schedule)
        cases = {
            "5 samples": partial(make, 5),
            "1 sample": partial(make, 1),
            "4 tokens, evaluation mode": partial(make, 4, tokens=True, training=False),
        }
        for frozen in ([0], [1]) if n > 1 else ([],):
            name = f"stage {frozen[0]} frozen" if frozen else "a parameter frozen"
            cases[name] = partial(make, 3, frozen=frozen)
        for _, make_case in trial.cases(cases):
            case = make_case()
            steps = _steps.run(
                case, lambda share: lambda x, t: function(share, x, t, mean_square, group)
            )
            _requirements.require(case, steps)
    return (
        "loss and gradients of the whole model, each stage computed once, and two messages at each "
        f"cut, on 1 to {check.world_size} ranks; with tokens, and with frozen stages"
    )
