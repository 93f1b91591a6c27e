"""Exercise `vocabulary_embedding`."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, refuses

MISTAKES = Mistakes(
    not_masked=(
        "each rank has added a row for every token: a rank that does not have a token must add "
        "zeros for it"
    ),
    **layers.texts("not_summed", "kept_whole", "sends_more"),
)


@check_of(MISTAKES)
def vocabulary_embedding(check: Check) -> str:
    """Check rows, gradients, memory, and calls, also for one rank's tokens, or another `reduce`."""
    for trial in check.trials():
        n = trial.size
        for _, one_rank in trial.cases({"tokens of all ranks": False, "tokens of one rank": True}):
            _case(trial, one_rank)
        for vocabulary in (4 * n + 1, n + 1):
            refuses(
                trial,
                lambda size=vocabulary: check.function(nn.Embedding(size, 3), trial.group),
                f"a vocabulary of {vocabulary}",
                [vocabulary],
            )
    return (
        "each rank has its part of the vocabulary, and learns from its own tokens; one sum of "
        f"(batch, seq, h), on 1 to {check.world_size} ranks"
    )


def _case(trial: Trial, one_rank: bool) -> None:
    n, pick = trial.size, trial.draw.randrange
    part, hidden = pick(3, 7), n * pick(2, 4)
    first, border = pick(n) * part, pick(1, n) * part if n > 1 else 1
    if one_rank:
        drawn = [first + pick(part) for _ in range(15)]
    else:
        drawn = [0, n * part - 1, border, border - 1, *(pick(n * part) for _ in range(11))]
    tokens = torch.tensor(drawn).view(3, 5)
    case = layers.Case(
        MISTAKES,
        layers.seeded(trial, lambda: nn.Embedding(n * part, hidden)),
        lambda embedding: trial.check.function(embedding, trial.group),
        tokens,
        {"weight": layers.Share(0)},
        forward=1,
        backward=0,
    )
    case.wrong = lambda _, rank, ranks: _wrong(case, ranks)
    layers.compare(trial, case)
    _other_reduce(trial, case)


def _wrong(case: layers.Case, ranks: int) -> Iterator[layers.Variant]:
    parts = case.make().weight.detach().chunk(ranks)
    count = len(parts[0])
    local = [case.x - r * count for r in range(ranks)]
    for rows in (  # that each rank looks up for all tokens
        [one.clamp(0, count - 1) for one in local],
        [torch.where((one >= 0) & (one < count), one, 0) for one in local],
    ):
        yield OUTPUT, "not_masked", sum(p[i] for p, i in zip(parts, rows, strict=True))


def _other_reduce(trial: Trial, case: layers.Case) -> None:
    """Require that `reduce` gets parts that add up to the rows, and that its result is returned."""
    batches, given = (case.x, case.x.flip(0, 1)), []

    def reduce(rows: Tensor) -> Tensor:
        given.append(rows.detach().clone())
        return rows * 3

    def run() -> list[Tensor]:
        layer = trial.check.function(case.make(), trial.group, reduce)
        return [layer(batch).detach() for batch in batches]

    got = trial.run_function(run, seconds=SECONDS)
    everyone = trial.gather(given)

    def used() -> Finding | None:
        text = "`reduce` was passed, but {}: it must add up the ranks' parts, once"
        if len(given) != 2:
            return observed(text.format(f"is called {len(given)} times for two batches"))
        if not all(same(one, 3 * rows, TOLERANCE) for one, rows in zip(got, given, strict=True)):
            return observed(text.format("the layer does not return its result"))
        if trial.size > 1 and trial.calls[trial.rank]:
            return observed(text.format("something else is sent as well"))
        for which, batch, *parts in zip(("first", "second"), batches, *everyone, strict=True):
            right = case.make()(batch).detach()
            if found := equal(sum(parts), right, f"the sum of the {which} batch", TOLERANCE):
                return found
        return None

    trial.require(used)
