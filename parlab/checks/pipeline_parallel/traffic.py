"""Requirement on a step: the messages that are needed, each once."""

from parlab.checks.mistakes import Finding, evidence
from parlab.checks.pipeline_parallel.cases import Case
from parlab.checks.pipeline_parallel.mistakes import MISTAKES
from parlab.ledger.calls import RECEIVES, SENDS


def messages(case: Case, steps: int = 1) -> Finding | None:
    """Whether this rank sent the tensors that others need, each once, and nothing else."""
    trial = case.trial
    calls = trial.calls[trial.rank]
    if other := next((c for c in calls if c.op not in (*SENDS, *RECEIVES)), None):
        return evidence(
            f"rank {trial.rank} calls {other.op}: what goes from one stage to the next concerns "
            "two ranks, and needs a message from one to the other"
        )
    widths = case.widths
    right, size = 0, 0
    for stage in range(trial.rank, case.count, case.ranks):
        for other, cut in ((stage + 1, stage + 1), (stage - 1, stage)):
            if 0 <= other < case.count and other % case.ranks != trial.rank:
                right += case.pieces * steps
                size += case.samples * widths[cut] * 8 * steps
    sends = trial.sends(trial.rank)
    got = sum(call.bytes_sent for call in sends)
    if len(sends) != right or got != size:
        return MISTAKES.sent_more(
            rank=trial.rank,
            got=f"{len(sends)} messages with {got} bytes",
            right=f"{right} with {size} bytes",
        )
    return None
