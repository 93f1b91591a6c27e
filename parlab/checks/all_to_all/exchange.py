"""Exercise `exchange`."""

from collections.abc import Callable

import torch
from mpi4py import MPI
from torch import Tensor

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.all_to_all._experts import gradient_of
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.ledger import Call, Ledger

SECONDS = 10.0  # a busy machine takes long to bring ranks together

MISTAKES = Mistakes(
    no_backward=(
        "the result is no part of autograd's graph, so x gets no gradient. Call "
        "`Exchange.apply(x, group)`, an autograd.Function whose backward pass sends the gradient"
    ),
    gradient_not_sent=(
        "this is the gradient of this rank's result. Each row was sent by another "
        "rank, so its gradient must travel there: exchange it"
    ),
    memory_order=(
        "the {which} pass sends or receives a tensor that is not contiguous. Gloo and NCCL refuse "
        "it. Use `.contiguous()`, and a contiguous output"
    ),
    sends_more=("the {which} pass makes the calls {got}, expected one all-to-all of {right} bytes"),
)
OF_ANOTHER_GROUP = observed(
    "after a call for another group, the backward pass uses that group. Store the group in `ctx`, "
    "which each call has for itself"
)


def _permuted(x: Tensor, _: int) -> Tensor:
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def _contiguous(x: Tensor, _: int) -> Tensor:
    return x


def _permuted_on_odd_ranks(x: Tensor, rank: int) -> Tensor:
    return _permuted(x, rank) if rank % 2 else x


CASES = {  # the shape of a row, its dtype, and how x and the gradient lie in memory on a rank
    "two dimensions": ((5,), torch.float64, _contiguous),
    "float32, four dimensions": ((2, 3, 2), torch.float32, _contiguous),
    "one number for each rank": ((), torch.float64, _contiguous),
    "not contiguous": ((4, 3), torch.float64, _permuted),
    "not contiguous on odd ranks": ((3, 2), torch.float64, _permuted_on_odd_ranks),
    "no numbers": ((0, 2), torch.float64, _contiguous),
}


@check_of(MISTAKES)
def exchange(check: Check) -> str:
    """Check values, gradients, and calls; then another group, and a wrong number of rows."""
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


def _case(
    trial: Trial,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    layout: Callable[[Tensor, int], Tensor],
) -> None:
    n = trial.size
    x, gradient = (experts.random(trial.draw, n, n, *shape, dtype=dtype) for _ in range(2))
    own, own_gradient = (layout(part[trial.rank], trial.rank) for part in (x, gradient))
    done = trial.run_function(_both_passes, trial, own, own_gradient, seconds=SECONDS)
    run, passes = done or (None, {})
    name = gradient_of("x")
    right, wrong = gradient[:, trial.rank], [(name, "gradient_not_sent", own_gradient)]

    def as_asked(which: str) -> Finding | None:
        calls, contiguous = passes[which]
        found = experts.all_to_alls(MISTAKES, which, calls, 1, x[0].nbytes) if n > 1 else None
        return found or (None if contiguous else MISTAKES.memory_order(which=which))

    trial.require(
        lambda: experts.unchanged(run),
        lambda: something_sent(trial),
        lambda: equal(run.output, x[:, trial.rank]),
        lambda: None if run.has_graph else MISTAKES.no_backward(),
        lambda: experts.gradients_are(run.gradients, {name: right}, MISTAKES, wrong, 0.0),
        lambda: as_asked("forward"),
        lambda: as_asked("backward"),
    )


def _both_passes(
    trial: Trial, x: Tensor, gradient: Tensor
) -> tuple[experts.Run, dict[str, tuple[list[Call], bool]]]:
    """Run both passes; return also the calls of each, and whether their tensors are contiguous."""
    passes: dict[str, tuple[list[Call], bool]] = {}
    trial.group.take_events()

    def note(which: str) -> None:
        done = sum(len(calls) for calls, _ in passes.values())
        contiguous = all(event.contiguous for event in trial.group.take_events())
        passes[which] = trial.ledger.calls[done:], contiguous

    def forward(x: Tensor) -> Tensor:
        output = trial.check.function(x, trial.group)
        note("forward")
        return output

    run = experts.run(forward, {"x": x}, gradient)
    note("backward")
    return run, passes


def _with_another_group(trial: Trial, rows: Tensor) -> Tensor:
    """Return the gradient of an exchange after one for a group of this rank alone.

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
