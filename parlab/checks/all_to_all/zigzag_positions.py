"""Exercise `zigzag_positions`."""

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.refusals import require_refusals

MISTAKES = Mistakes(
    not_turned_around=(
        "rank r has chunks r and N + r. Reverse the order of the late chunks: rank 0 gets the last "
        "one, 2N - 1"
    ),
    late_first="the late chunk comes first. Rank r has chunk r, and then chunk 2N - 1 - r",
)
SIZES = {
    f"{sequence} tokens on {ranks} rank{'s' * (ranks > 1)}": (sequence, ranks)
    for sequence, ranks in ((24, 3), (16, 4), (8, 4), (12, 2), (10, 1), (160, 8))
}
REFUSED = ((12, 4), (9, 3), (7, 1), (4, 3))


@check_of(MISTAKES, ranks=1)
def zigzag_positions(check: Check) -> str:
    """Check the layouts of several sequences, and which sequences are refused."""
    with check.trial() as trial:
        for _, (sequence, ranks) in trial.cases(SIZES, again=False):
            got = trial.run(sequence, ranks)
            trial.require(lambda: _layout(got, sequence, ranks))
        wrong = {f"a sequence of {s} tokens on {ranks} ranks": (s, ranks) for s, ranks in REFUSED}
        require_refusals(trial, wrong, "sequence")
    return "each rank has an early chunk and the late one that belongs to it, on 1 to 8 ranks"


def _layout(got: Tensor, sequence: int, ranks: int) -> Finding | None:
    chunks = torch.arange(sequence).view(2 * ranks, -1)
    early, late = chunks[:ranks], chunks[ranks:]

    def joined(first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first, second), 1)

    wrong = {
        "not_turned_around": joined(early, late),
        "late_first": joined(late.flip(0), early),
    }
    return explained(got, joined(early, late.flip(0)), wrong, MISTAKES)
