"""Exercise `exchange`."""

from functools import partial

import torch
from mpi4py import MPI
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, same
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.messages import contiguous, something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.ledger import Ledger

SECONDS = 10.0  # on a busy machine, the ranks may meet late

MISTAKES = Mistakes(
    no_backward=(
        "the result is no part of autograd's graph, so x gets no gradient. Call "
        "`Exchange.apply(x, group)`, an autograd.Function whose backward pass sends the gradient"
    ),
    gradient_not_sent=(
        "this is the gradient of this rank's result. Each row was sent by another "
        "rank, so its gradient must travel there: exchange it"
    ),
    sends_more=("the {which} pass makes the calls {got}, expected one all-to-all of {right} bytes"),
)
OF_ANOTHER_GROUP = observed(
    "after a call for another group, the backward pass uses that group. Store the group in `ctx`, "
    "which each call has for itself"
)


CASES = {  # the shape of a row, its dtype, and whether odd ranks have it in another order in memory
    "two dimensions": ((5,), torch.float64, False),
    "float32, four dimensions": ((2, 3, 2), torch.float32, False),
    "one number for each rank": ((), torch.float64, False),
    "not contiguous on odd ranks": ((3, 2), torch.float64, True),
    "no numbers": ((0, 2), torch.float64, False),
}


@check_of(MISTAKES)
def exchange(check: Check) -> str:
    """Check values, gradients, calls, a second group, and refusals of a wrong number of rows."""
    for trial in check.trials():
        for _, case in trial.cases(CASES):
            _case(trial, *case)
        rows = experts.random(trial.draw, trial.size, trial.size, 2)
        got = trial.run_function(_with_another_group, trial, rows, seconds=SECONDS)
        trial.require(lambda: None if same(got, rows[:, trial.rank]) else OF_ANOTHER_GROUP)
        for wrong in {2 * trial.size, trial.size + 1, trial.size - 1}:
            call = {
                f"x with {wrong} rows on {trial.size} ranks": (torch.ones(wrong, 2), trial.group)
            }
            require_refusals(trial, call, str(wrong), seconds=SECONDS)
    return (
        "row j goes to rank j, and its gradient comes back, with one all-to-all in each pass, on 1 "
        f"to {check.world_size} ranks"
    )


def _case(trial: Trial, shape: tuple[int, ...], dtype: torch.dtype, permuted: bool) -> None:
    n, rank = trial.size, trial.rank
    x, gradient = (experts.random(trial.draw, n, n, *shape, dtype=dtype) for _ in range(2))
    own, pull = x[rank].clone(), gradient[rank].clone()
    if permuted and rank % 2:
        own, pull = (part.permute(2, 1, 0).contiguous().permute(2, 1, 0) for part in (own, pull))
    own.requires_grad_()
    # A view, because a leaf could not be changed in place.
    output = trial.run(own.view_as(own), trial.group, seconds=SECONDS)
    kept = partial(unchanged, "`x`", own, x[rank])
    size = x[0].nbytes
    trial.require(
        kept,
        lambda: something_sent(trial),
        lambda: equal(output, x[:, rank]),
        lambda: _new(output, own),
        lambda: None if output.requires_grad else MISTAKES.no_backward(),
        lambda: experts.all_to_alls(MISTAKES, "forward", trial, 1, size),
        lambda: contiguous(trial),
    )
    trial.run_function(lambda: output.backward(pull), seconds=SECONDS)
    right, wrong, name = gradient[:, rank], {"gradient_not_sent": pull}, "the gradient of `x`"
    trial.require(
        kept,
        lambda: explained(own.grad, right, wrong, MISTAKES, name, with_name=True),
        lambda: experts.all_to_alls(MISTAKES, "backward", trial, 1, size),
        lambda: contiguous(trial),
    )


def _new(output: Tensor, x: Tensor) -> Finding | None:
    is_shared = output.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return observed("the result shares the memory of `x`") if is_shared and x.numel() else None


def _with_another_group(trial: Trial, rows: Tensor) -> Tensor:
    """Return the gradient of an exchange after another exchange, for a group of only this rank.

    Rank r's gradient is row r of `rows`.
    """
    x = torch.zeros_like(rows[0], requires_grad=True)
    output = trial.check.function(x, trial.group)
    alone = RecordingGroup(MPI.COMM_SELF, [0], Ledger())
    try:
        trial.check.function(torch.zeros(1, 3, requires_grad=True), alone)
    finally:
        alone.close()
    output.backward(rows[trial.rank])
    return x.grad
