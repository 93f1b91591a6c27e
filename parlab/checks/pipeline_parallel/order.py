"""Requirements on a step: its actions, once each and in order, and what is held between them."""

from parlab.checks.mistakes import Finding, evidence
from parlab.checks.pipeline_parallel.cases import Case
from parlab.checks.pipeline_parallel.mistakes import MISTAKES
from parlab.checks.pipeline_parallel.runs import Seen
from parlab.pipeline import text, texts

# Names of a loop may hold on to what it did last.
LOOSE_ENDS = 2


def once(case: Case, seen: Seen) -> Finding | None:
    """Whether no stage computes a micro-batch again."""
    forwards = [action for action in seen.did if action.kind == "forward"]
    for action in forwards:
        if action.micro_batch >= 0 and (times := forwards.count(action)) > 1:
            return MISTAKES.recomputed(stage=action.stage, i=action.micro_batch, times=times)
    return None


def in_order(case: Case, seen: Seen) -> Finding | None:
    """Whether the rank did its actions, in the schedule's order."""
    did, ranks = seen.did, case.ranks if case.chunks == 1 else None
    # A first stage that is frozen has no backward pass to be seen.
    unseen = {0} & set(case.frozen or ())
    own = [
        action
        for action in case.schedule[case.trial.rank]
        if action in did or action.kind == "forward" or action.stage not in unseen
    ]
    for number, right in enumerate(own):
        if number == len(did):
            return evidence(
                f"rank {case.trial.rank} does not do {text(right, ranks)}: it ends after "
                f"{number} of {len(own)} actions"
            )
        if did[number].micro_batch < 0:
            return evidence(
                f"what stage {did[number].stage} gets for {text(right, ranks)} is no micro-batch "
                "of this batch, cut by `tensor_split`, as the stage before gives it"
            )
        if did[number] != right:
            got = texts([*did[: number + 1]], ranks)
            return MISTAKES.other_order(
                rank=case.trial.rank, got=got, right=texts(own[: number + 1], ranks)
            )
    if len(did) > len(own):
        return evidence(f"rank {case.trial.rank} does {len(did)} actions where {len(own)} are its")
    return None


def freed(case: Case, seen: Seen) -> Finding | None:
    """Whether at each forward pass no more is held than the actions so far leave."""
    right, flying = [], 0
    for action in case.schedule[case.trial.rank]:
        flying += 1 if action.kind == "forward" else -1
        if action.kind == "forward":
            right.append(flying)
    for got, most in zip(seen.saved, right, strict=False):
        if got > most:
            return MISTAKES.graph_kept(rank=case.trial.rank, got=got, right=most)
    for what in (seen.held, seen.inputs):
        for got, most in zip(what, right, strict=False):
            if got > most + LOOSE_ENDS:
                return MISTAKES.never_freed(rank=case.trial.rank, got=got, right=most)
    return None
