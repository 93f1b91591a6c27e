"""Exercise `column_parallel_linear`."""

from torch import nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import OUTPUT, random, refuses

MISTAKES = Mistakes(
    **layers.texts("fused_as_one", "not_summed", "reduced_again", "kept_whole", "sends_more"),
)
UNEVEN = {  # sizes in parts of a rank: (whole parts, rest) of each section
    "one section": [(3, 1)],
    "two sections": [(2, 1), (2, -1)],
    "three sections": [(1, 0), (2, 1), (2, -1)],  # the ranks divide the first one
}


@check_of(MISTAKES)
def column_parallel_linear(check: Check) -> str:
    """Check parameters, output, gradients, memory, and calls, with sections and without a bias."""
    for trial in check.trials():
        n, pick = trial.size, trial.draw.randrange
        q, k, v = (n * pick(1, 4) for _ in range(3))
        cases = {
            "one section with bias": ([n * pick(2, 5)], True, (3, 2)),
            "three sections with bias": ([q, k, q + v], True, (2, 3)),
            "one section without bias": ([n * pick(2, 5)], False, (5,)),
        }
        for _, (sections, bias, shape) in trial.cases(cases):
            _case(trial, sections, bias, shape)
        for name, parts in trial.cases(UNEVEN):
            sections = [whole * n + rest for whole, rest in parts]
            linear, given = nn.Linear(3, sum(sections)), [sections] if len(sections) > 1 else []
            refuses(
                trial,
                lambda linear=linear, given=given: check.function(linear, trial.group, *given),
                f"{name} of {sections} outputs",
                sections,
            )
    return (
        "each rank has its outputs, of each section, in memory of its own; x's gradient is whole; "
        f"nothing is sent forward, on 1 to {check.world_size} ranks"
    )


def _case(trial: Trial, sections: list[int], bias: bool, shape: tuple[int, ...]) -> None:
    inputs, outputs, several = 2 * trial.size, sum(sections), len(sections) > 1
    given = [list(sections)] if several else []
    rows = layers.Share(0, tuple(sections) if several else ())
    case = layers.Case(
        MISTAKES,
        layers.seeded(trial, lambda: nn.Linear(inputs, outputs, bias=bias)),
        lambda linear: trial.check.function(linear, trial.group, *given),
        random(trial.draw, *shape, inputs),
        {"weight": rows, "bias": rows, OUTPUT: layers.Share(-1, rows.sections)},
        forward=0,
        backward=1,
    )
    layers.compare(trial, case)
    trial.require(lambda: unchanged("`sections`", given, [sections] if several else []))
