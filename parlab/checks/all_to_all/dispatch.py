"""Exercise `dispatch`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all._experts import Routing
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial

MISTAKES = Mistakes(
    dropped_kept=(
        "slot {slot} of expert {expert} has token {token}, which this expert has "
        "dropped. As an index, −1 is the last slot, so first leave out the choices whose slot is −1"
    ),
    one_choice=(
        "only choice {choice} of each token is in the slots. Copy the token for each of its k "
        "choices"
    ),
    packed=(
        "each expert has its tokens in its first slots, in the order in which you copy them. The "
        "slot of each choice is in `slots_Tk`"
    ),
    cut_off=(
        "the result is no part of autograd's graph, so tokens get no gradient. Write into a tensor "
        "of zeros by indices, without `.data`, `.detach()`, or `torch.no_grad()`"
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
    run = trial.run_function(experts.run, trial.check.function, {**inputs, **sizes}, gradient)
    gradients = {experts.gradient_of("x_TH"): x_gradient}

    def result() -> Finding | None:
        found = equal(run.output, right)
        if found and isinstance(run.output, Tensor) and run.output.shape == right.shape:
            return _named(run.output, right, *inputs.values()) or found
        return found

    trial.require(
        lambda: experts.unchanged(run),
        result,
        lambda: None if run.has_graph or (slots_Tk < 0).all() else MISTAKES.cut_off(),
        lambda: experts.values_are(run.values, gradients, (), MISTAKES, 1e-5),
    )


def _named(
    got: Tensor, right: Tensor, x_TH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor
) -> Finding | None:
    """Name the mistake if it explains every slot that is wrong."""
    for key, values, value in _wrong(right, x_TH, experts_Tk, slots_Tk):
        if same(got, value) and not same(value, right):
            return getattr(MISTAKES, key)(**values)
    wrong = [tuple(place) for place in (got != right).any(-1).nonzero().tolist()]
    dropped = (slots_Tk < 0).nonzero().tolist()
    copies = {
        (int(experts_Tk[t, j]), slot): t
        for expert, slot in wrong
        for t, j in dropped
        if experts_Tk[t, j] == expert and same(got[expert, slot], x_TH[t])
    }
    if not wrong or len(copies) < len(wrong):
        return None
    (expert, slot), token = next(iter(copies.items()))
    return MISTAKES.dropped_kept(expert=expert, slot=slot, token=token)


def _wrong(
    right: Tensor, x_TH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor
) -> Iterator[tuple[str, dict[str, int], Tensor]]:
    """Yield what mistakes compute: a key, the values of its text, and the slots."""
    kept = experts.kept(experts_Tk, slots_Tk)
    for only in range(experts_Tk.shape[1]):
        value = torch.zeros_like(right)
        for token, choice, expert, slot in kept:
            if choice == only:
                value[expert, slot] = x_TH[token]
        yield "one_choice", {"choice": only}, value
    for order in (kept, sorted(kept, key=lambda place: place[1])):
        value, used = torch.zeros_like(right), [0] * len(right)
        for token, _, expert, _ in order:
            value[expert, used[expert]] = x_TH[token]
            used[expert] += 1
        yield "packed", {}, value
