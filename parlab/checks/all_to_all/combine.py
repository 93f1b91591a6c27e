"""Exercise `combine`."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all._experts import Routing
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    order_of_arrival=(
        "it has the order of experts and slots. Return the rows in the order of the tokens: "
        "row t is for token t"
    ),
    dropped_added=(
        "choices that were dropped add the result of another token. As an index, −1 is the last "
        "slot, and a slot that is set to 0 is the first one. Leave out the choices whose slot is −1"
    ),
    one_choice=(
        "only one of the choices of each token is in it. Add up all of them: "
        "`y[tokens] = rows` and `y[tokens] += rows` write only once to each row, but `index_add` "
        "adds"
    ),
)
CASES = {
    "two choices, none dropped": Routing(5, 2, 3, 2, 5),
    "one choice, none dropped": Routing(6, 3, 4, 1, 6),
    "two choices, some dropped": Routing(11, 4, 4, 2, 3, dropped=0.2),
    "one choice, some dropped": Routing(9, 2, 3, 1, 2, dropped=0.1),
    "float32, all experts": Routing(4, 5, 3, 3, 5, dtype=torch.float32),
    "all choices are dropped": Routing(4, 3, 2, 2, 3, dropped=1.0),
    "no tokens": Routing(0, 3, 4, 2, 2),
}


@check_of(MISTAKES, ranks=1)
def combine(check: Check) -> str:
    """Check results and gradients for random choices, with and without dropped ones."""
    with check.trial() as trial:
        for _, case in trial.cases(CASES):
            _case(trial, case)
    return (
        "gate times result, added up over the choices of each token; gradients of both; dropped "
        "choices and empty slots add nothing"
    )


def _case(trial: Trial, case: Routing) -> None:
    experts_Tk, slots_Tk = case.drawn(trial.draw)
    y_ECH = experts.random(trial.draw, case.experts, case.capacity, case.hidden, dtype=case.dtype)
    gates_Tk = experts.random(trial.draw, case.tokens, case.k, dtype=case.dtype).sigmoid()
    gradient = experts.random(trial.draw, case.tokens, case.hidden, dtype=case.dtype)
    names = "y_ECH", "experts_Tk", "slots_Tk", "gates_Tk"
    inputs = dict(zip(names, (y_ECH, experts_Tk, slots_Tk, gates_Tk), strict=True))
    right, leaves = experts.passes(_combined, inputs, gradient)
    output, given = trial.run_function(experts.passes, trial.check.function, inputs, gradient)
    tolerance, wrong = 1e-5 if case.dtype is torch.float32 else 1e-12, _wrong(*inputs.values())

    def gradient_is(name: str) -> Finding | None:
        of = leaves[name].grad
        of = torch.zeros_like(leaves[name]) if of is None else of
        return experts.gradient_is(name, given[name], of, tolerance)

    trial.require(
        *(partial(unchanged, f"`{name}`", given[name], x) for name, x in inputs.items()),
        lambda: explained(output, right, wrong, MISTAKES, "the result", tolerance),
        partial(gradient_is, "y_ECH"),
        partial(gradient_is, "gates_Tk"),
    )


def _combined(y_ECH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor, gates_Tk: Tensor) -> Tensor:
    rows = [torch.zeros_like(y_ECH[0, 0]) for _ in experts_Tk]
    for token, choice, expert, slot in experts.kept(experts_Tk, slots_Tk):
        rows[token] = rows[token] + gates_Tk[token, choice] * y_ECH[expert, slot]
    return torch.stack(rows) if rows else y_ECH.new_zeros(0, y_ECH.shape[2])


def _wrong(
    y_ECH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor, gates_Tk: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the results of mistakes."""
    gates, rows = gates_Tk.unsqueeze(-1), y_ECH[experts_Tk, slots_Tk]  # if dropped: the last slot
    yield "dropped_added", (gates * rows).sum(1)
    yield "dropped_added", (gates * y_ECH[experts_Tk, slots_Tk.clamp(min=0)]).sum(1)
    for order in (1, -1):
        last = y_ECH.new_zeros(len(experts_Tk), y_ECH.shape[2])
        for token, choice, expert, slot in experts.kept(experts_Tk, slots_Tk)[::order]:
            last[token] = gates_Tk[token, choice] * y_ECH[expert, slot]
        yield "one_choice", last
    if (slots_Tk >= 0).all():
        arrival = (experts_Tk * y_ECH.shape[1] + slots_Tk).flatten().argsort()
        yield "order_of_arrival", (gates * rows.flatten(0, 1)[arrival].view(rows.shape)).sum(1)
