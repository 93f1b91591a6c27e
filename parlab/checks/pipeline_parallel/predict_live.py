"""Exercise `predict_live`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.pipeline_parallel import schedules
from parlab.checks.predictions import first_wrong, form, is_number
from parlab.pipeline import Schedule, live, needs, simulate, sizes

MISTAKES = Mistakes(
    grows_with_m=(
        "one_f_one_b: that is GPipe's. 1F1B does a backward pass before it takes a new micro-batch "
        "in, once the pipeline is full"
    ),
    as_on_rank_0=(
        "one_f_one_b: that is what rank 0 holds. The nearer a rank is to the end, the sooner its "
        "gradients come"
    ),
    from_the_start=(
        "one_f_one_b: that counts the ranks up to this one. It waits for those after it: from "
        "there its gradients come"
    ),
    one_less=(
        "one_f_one_b: that is the warm-up alone. The forward pass of the first pair comes before a "
        "backward pass frees anything"
    ),
    few_forgotten="one_f_one_b: nobody holds more micro-batches than there are",
    forward_alone="messages: the gradients travel as well, one for each activation",
    stages_for_gaps="messages: between n stages the model is cut n − 1 times",
    way_back_forgotten=(
        "messages: that is p − 1 cuts for each of the v rounds. Between two rounds the last rank "
        "hands on to the first"
    ),
    chunks_forgotten=(
        "messages: with v stages a rank the model is cut p·v − 1 times, and every cut lies between "
        "two ranks"
    ),
)


@check_of(MISTAKES)
def predict_live(check: Check) -> str:
    """Compare with schedules that are played and counted."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        sizes = [(4, 8, 2, 2), (6, 2, 3, 0), (8, 20, 1, 0)]
        sizes += [(p := pick(2, 8), pick(2, 16), pick(1, 4), pick(p)) for _ in range(3)]
        for ranks, micro_batches, chunks, rank in sizes:
            trial.situation = f"p = {ranks}, m = {micro_batches}, v = {chunks}, rank {rank}"
            right = played(ranks, micro_batches, chunks, rank)
            predicted = trial.run(ranks, micro_batches, chunks, rank)
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, ranks, micro_batches, chunks, rank),
                lambda: first_wrong(predicted, right),
            )
    return "m, or p − r and no more than m; two messages a micro-batch at each of p·v − 1 cuts"


def played(ranks: int, micro_batches: int, chunks: int, rank: int) -> dict[str, float]:
    all_forward = schedules.forward_first(ranks, 1, micro_batches)
    by_turns = schedules.few_in_flight(ranks, micro_batches)
    several = schedules.forward_first(ranks, chunks, micro_batches)
    return {
        "gpipe": live(simulate(all_forward))[rank],
        "one_f_one_b": live(simulate(by_turns))[rank],
        "messages": messages(several),
    }


def messages(schedule: Schedule) -> int:
    """How often an action needs what another rank has."""
    ranks, chunks, _ = sizes(schedule)
    return sum(
        needed.stage % ranks != rank
        for rank, own in enumerate(schedule)
        for action in own
        for needed in needs(action, ranks * chunks)
    )


def misconception(
    predicted: dict[str, float],
    right: dict[str, float],
    ranks: int,
    micro_batches: int,
    chunks: int,
    rank: int,
) -> Finding | None:
    got = predicted["one_f_one_b"]
    if not is_number(got, right["one_f_one_b"]):
        if is_number(got, ranks - rank):
            return MISTAKES.few_forgotten()
        if is_number(got, min(ranks, micro_batches)) and micro_batches > ranks:
            return MISTAKES.as_on_rank_0()
        if is_number(got, micro_batches):
            return MISTAKES.grows_with_m()
        if is_number(got, min(rank + 1, micro_batches)):
            return MISTAKES.from_the_start()
        if is_number(got, min(ranks - rank - 1, micro_batches)):
            return MISTAKES.one_less()
    got, cuts = predicted["messages"], ranks * chunks - 1
    if not is_number(got, right["messages"]):
        if is_number(got, micro_batches * cuts):
            return MISTAKES.forward_alone()
        if is_number(got, 2 * micro_batches * (ranks - 1)):
            return MISTAKES.chunks_forgotten()
        if is_number(got, 2 * micro_batches * chunks * (ranks - 1)):
            return MISTAKES.way_back_forgotten()
        if is_number(got, 2 * micro_batches * (cuts + 1)):
            return MISTAKES.stages_for_gaps()
    return None
