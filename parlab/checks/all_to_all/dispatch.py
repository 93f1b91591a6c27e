"""Exercise `dispatch`."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all._experts import Routing
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    dropped_kept=(
        "choices that were dropped are in the last slots of their experts. As an index, −1 is the "
        "last slot, so first leave out the choices whose slot is −1"
    ),
    packed=(
        "each expert has its tokens in its first slots, in the order in which you copy them. The "
        "slot of each choice is in `slots_Tk`"
    ),
)
CASES = {
    "two choices": Routing(7, 3, 5, 2, 4),
    "two choices, some dropped": Routing(11, 4, 4, 2, 3, dropped=0.2),
    "one choice, some dropped": Routing(9, 2, 3, 1, 2, dropped=0.1),
    "float32, all experts": Routing(4, 5, 3, 3, 5, dtype=torch.float32),
    "one slot": Routing(8, 2, 3, 2, 1),
    "all choices are dropped": Routing(4, 3, 2, 2, 3, dropped=1.0),
    "no tokens": Routing(0, 3, 4, 2, 2),
}


@check_of(MISTAKES, ranks=1)
def dispatch(check: Check) -> str:
    """Check slots and gradients for random choices, with and without dropped ones."""
    with check.trial() as trial:
        for _, case in trial.cases(CASES):
            _case(trial, case)
    return "each token is in its slots, empty slots are zero, and gradients add up over the copies"


def _case(trial: Trial, case: Routing) -> None:
    experts_Tk, slots_Tk = case.drawn(trial.draw)
    x_TH = experts.random(trial.draw, case.tokens, case.hidden, dtype=case.dtype)
    gradient = experts.random(
        trial.draw, case.experts, case.capacity, case.hidden, dtype=case.dtype
    )
    right, x_gradient = torch.zeros_like(gradient), torch.zeros_like(x_TH)
    for token, _, expert, slot in experts.kept(experts_Tk, slots_Tk):
        right[expert, slot] = x_TH[token]
        x_gradient[token] += gradient[expert, slot]
    inputs = {"x_TH": x_TH, "experts_Tk": experts_Tk, "slots_Tk": slots_Tk}
    sizes = {"n_experts": case.experts, "capacity": case.capacity}
    output, given = trial.run_function(
        experts.passes, trial.check.function, inputs | sizes, gradient
    )
    wrong = _wrong(right, *inputs.values())
    trial.require(
        *(partial(unchanged, f"`{name}`", given[name], x) for name, x in inputs.items()),
        lambda: explained(output, right, wrong, MISTAKES),
        lambda: experts.gradient_is("x_TH", given["x_TH"], x_gradient, 1e-5),
    )


def _wrong(
    right: Tensor, x_TH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the results of mistakes, which copy token by token or choice by choice."""
    places = list(product(range(len(x_TH)), range(experts_Tk.shape[1])))
    for order in (places, sorted(places, key=lambda place: place[1])):
        last, packed, used = torch.zeros_like(right), torch.zeros_like(right), [0] * len(right)
        for token, choice in order:
            expert, slot = int(experts_Tk[token, choice]), int(slots_Tk[token, choice])
            last[expert, slot] = x_TH[token]  # −1 is the last slot
            if slot >= 0:
                packed[expert, used[expert]] = x_TH[token]
                used[expert] += 1
        yield "dropped_kept", last
        yield "packed", packed
