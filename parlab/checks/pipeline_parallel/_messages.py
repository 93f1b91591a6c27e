"""Requirements on messages, and reports of what ranks did when a call raised an error or hung."""

from parlab.checks.base.call_outcome import ending
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.watchdog import Ended
from parlab.ledger.calls import RECEIVES, SENDS

MISTAKES = Mistakes(
    to_itself=(
        "a rank sends to itself, or receives from itself. Use `group_dst` and `group_src`: `dst` "
        "and `src` count the ranks of the whole job. A tensor that stays on its rank needs no "
        "message"
    ),
)
REFUSED = "rank should not be the same as the rank of the current process"  # torch's error

Endings = dict[int, Ended]


def to_itself(trial: Trial) -> Finding | None:
    """Require that this rank neither sends to itself nor receives from itself."""
    calls = trial.ledger.calls
    return MISTAKES.to_itself() if any(trial.rank in (c.to, c.source) for c in calls) else None


def sends_once(trial: Trial, count: int, size: int) -> Finding | None:
    """Require that this rank sends `count` messages of `size` bytes together, and nothing else."""
    if found := to_itself(trial):
        return found
    for call in trial.calls[trial.rank]:
        if call.op not in (*SENDS, *RECEIVES):
            return observed(f"it calls {call.op}. Use only messages between two ranks")
    sends, got = len(trial.sends(trial.rank)), trial.bytes_sent(trial.rank)
    if (sends, got) == (count, size):
        return None
    return observed(
        f"it sends {sends} messages with {got} bytes, expected {count} with {size}: each tensor "
        "once, to the rank that needs it"
    )


def explain(trial: Trial, endings: Endings, doing: str, found: Finding | None = None) -> Finding:
    """Return `found`, or how the call ended, with what ranks were doing. Collective.

    Args:
        doing: what this rank was doing. If ranks raised an error, only these ranks' texts appear.
        found: the mistake, if it is certain. If a rank sends to itself, this is named instead.
    """
    texts, outcome = trial.gather(doing), ending(endings) or COMMON.does_not_end()
    if any(trial.gather(to_itself(trial))) or any(REFUSED in e.error for e in endings.values()):
        found = MISTAKES.to_itself()
    raised = [rank for rank, ended in endings.items() if ended.kind == "raised"]
    lines = [f"  rank {rank} {texts[rank]}" for rank in raised or endings if texts[rank]]
    first = [found.text] if found else []
    return Finding("\n".join([*first, outcome.text, *lines]), (found or outcome).mistake)
