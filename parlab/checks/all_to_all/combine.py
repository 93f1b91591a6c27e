"""Exercise `combine`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all._experts import Routing, gradient_of
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.trial import Trial

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
    leaves = y_ECH.clone().requires_grad_(), gates_Tk.clone().requires_grad_()
    output = _combined(leaves[0], experts_Tk, slots_Tk, leaves[1])
    if output.requires_grad:
        output.backward(gradient)
    names = "y_ECH", "experts_Tk", "slots_Tk", "gates_Tk"
    inputs = dict(zip(names, (y_ECH, experts_Tk, slots_Tk, gates_Tk), strict=True))
    right = {
        gradient_of(name): torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in zip(("y_ECH", "gates_Tk"), leaves, strict=True)
    }
    run = trial.run_function(experts.run, trial.check.function, inputs, gradient)
    tolerance, wrong = 1e-5 if case.dtype is torch.float32 else 1e-12, _wrong(*inputs.values())
    trial.require(
        lambda: experts.unchanged(run),
        lambda: explained(run.output, output.detach(), wrong, MISTAKES, "the result", tolerance),
        lambda: experts.gradients_are(run.gradients, right, MISTAKES, (), tolerance),
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
    gates, rows = gates_Tk.unsqueeze(-1), y_ECH[experts_Tk, slots_Tk]  # of dropped: the last slot
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
