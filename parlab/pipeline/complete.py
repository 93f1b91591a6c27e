"""Verifies that a schedule has every action once, on the rank that has the stage."""

from collections import Counter

from parlab.pipeline.actions import Action, Schedule, backward, forward, text


class Incomplete(ValueError):
    """A schedule lacks an action, has it twice, or has it on the wrong rank."""


def sizes(schedule: Schedule) -> tuple[int, int, int]:
    """Return the ranks p, the stages on each rank v, and the micro-batches m of a schedule.

    v and m follow from the highest stage and micro-batch in it.

    Raises Incomplete, with the first action that is missing, doubled, misplaced, or invalid.
    """
    ranks, actions = len(schedule), [action for actions in schedule for action in actions]
    if not actions:
        raise Incomplete("the schedule has no action")
    for rank, own in enumerate(schedule):
        for action in own:
            _check(action, rank, ranks)
    chunks = max(action.stage for action in actions) // ranks + 1
    micro_batches = max(action.micro_batch for action in actions) + 1
    count = Counter(map(tuple, actions))
    for stage in range(ranks * chunks):
        for micro_batch in range(micro_batches):
            for action in (forward(stage, micro_batch), backward(stage, micro_batch)):
                if count[action] != 1:
                    name, rank = text(action, ranks if chunks == 1 else None), stage % ranks
                    how = f"occurs {count[action]} times" if count[action] else "is missing"
                    raise Incomplete(f"{name} of rank {rank} {how}")
    return ranks, chunks, micro_batches


def _check(action: Action, rank: int, ranks: int) -> None:
    try:
        kind, stage, micro_batch = action
    except (TypeError, ValueError):
        raise Incomplete(f"rank {rank} has {action!r}, which is not an action") from None
    numbers = isinstance(stage, int) and isinstance(micro_batch, int)
    if kind not in ("forward", "backward") or not numbers or min(stage, micro_batch) < 0:
        raise Incomplete(f"rank {rank} has {action!r}, which is not an action")
    if stage % ranks != rank:
        name = text(Action(*action))
        raise Incomplete(f"{name} is on rank {rank}, and stage {stage} is on rank {stage % ranks}")
