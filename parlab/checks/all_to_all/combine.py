"""Exercise `combine`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all._experts import OUTPUT, Routing, Variant, gradient_of
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.trial import Trial

MISTAKES = Mistakes(
    no_gate="the experts' results are not multiplied by the gates",
    order_of_arrival=(
        "it has the order of experts and slots. Return the rows in the order of the tokens: "
        "row t is for token t"
    ),
    dropped_added=(
        "choices that were dropped add the result of another token. As an index, −1 is the last "
        "slot, and a slot that is set to 0 is the first one. Leave out the choices whose slot is −1"
    ),
    renormalized=(
        "the gates of each token are divided by their sum. Multiply by the gates as they are"
    ),
    one_choice=(
        "only one of the choices of each token is in it. Add up all of them: "
        "`y[tokens] = rows` and `y[tokens] += rows` write only once to each row, but `index_add` "
        "adds"
    ),
    gates_detached=(
        "the gates get no gradient, so the router does not learn. Multiply by the gates inside "
        "autograd's graph"
    ),
    cut_off="the result is no part of autograd's graph: do not detach, and do not use `.data`",
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
    right = {OUTPUT: output.detach()}
    for name, leaf in zip(("y_ECH", "gates_Tk"), leaves, strict=True):
        right[gradient_of(name)] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    inputs = {"y_ECH": y_ECH, "experts_Tk": experts_Tk, "slots_Tk": slots_Tk, "gates_Tk": gates_Tk}
    run = trial.run_function(experts.run, trial.check.function, inputs, gradient)
    tolerance = 1e-5 if case.dtype is torch.float32 else 1e-12
    trial.require(
        lambda: experts.unchanged(run),
        lambda: experts.values_are(
            run.values,
            {OUTPUT: right[OUTPUT]},
            _wrong(y_ECH, experts_Tk, slots_Tk, gates_Tk),
            MISTAKES,
            tolerance,
        ),
        lambda: None if run.has_graph or (slots_Tk < 0).all() else MISTAKES.cut_off(),
        lambda: (
            MISTAKES.gates_detached()
            if run.values[gradient_of("gates_Tk")] is None and (slots_Tk >= 0).any()
            else None
        ),
        lambda: experts.values_are(run.values, right, (), MISTAKES, tolerance),
    )


def _combined(y_ECH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor, gates_Tk: Tensor) -> Tensor:
    rows = [torch.zeros_like(y_ECH[0, 0]) for _ in experts_Tk]
    for token, choice, expert, slot in experts.kept(experts_Tk, slots_Tk):
        rows[token] = rows[token] + gates_Tk[token, choice] * y_ECH[expert, slot]
    return torch.stack(rows) if rows else y_ECH.new_zeros(0, y_ECH.shape[2])


def _wrong(
    y_ECH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor, gates_Tk: Tensor
) -> Iterator[Variant]:
    """Yield the results of mistakes."""
    tokens = len(experts_Tk)
    ones, is_kept = torch.ones_like(gates_Tk), slots_Tk >= 0
    rows = y_ECH[experts_Tk, slots_Tk]  # of dropped choices: the last slot
    first = y_ECH[experts_Tk, slots_Tk.clamp(min=0)]
    yield OUTPUT, "no_gate", _combined(y_ECH, experts_Tk, slots_Tk, ones)
    for all_rows in (rows, first):
        yield OUTPUT, "dropped_added", (gates_Tk.unsqueeze(-1) * all_rows).sum(1)
    for gates in (gates_Tk, gates_Tk * is_kept):
        shares = gates / gates.sum(1, keepdim=True).clamp(min=1e-30)
        yield OUTPUT, "renormalized", _combined(y_ECH, experts_Tk, slots_Tk, shares)
    for order in (1, -1):
        last = y_ECH.new_zeros(tokens, y_ECH.shape[2])
        for token, choice, expert, slot in experts.kept(experts_Tk, slots_Tk)[::order]:
            last[token] = gates_Tk[token, choice] * y_ECH[expert, slot]
        yield OUTPUT, "one_choice", last
    if is_kept.all():
        arrival = (experts_Tk * y_ECH.shape[1] + slots_Tk).flatten().argsort()
        by_slot = rows.flatten(0, 1)[arrival].view(rows.shape)
        weighted = (gates_Tk.unsqueeze(-1) * rows).flatten(0, 1)[arrival].view(rows.shape)
        yield OUTPUT, "order_of_arrival", weighted.sum(1)
        yield OUTPUT, "order_of_arrival", (gates_Tk.unsqueeze(-1) * by_slot).sum(1)
