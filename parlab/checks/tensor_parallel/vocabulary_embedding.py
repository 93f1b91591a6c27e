"""Exercise `vocabulary_embedding`."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import OUTPUT, SECONDS, gradient_of, refuses

MISTAKES = Mistakes(
    not_masked=(
        "each rank has added a row for every token: a rank that does not have a token must add "
        "zeros for it"
    ),
    trace=(
        "rows that were looked up for tokens of other ranks get a gradient too: a rank's weight "
        "must learn from its own tokens only"
    ),
    summed_rows=(
        "the gradients of all ranks' rows are added: each rank has other rows, so nothing may be "
        "summed over the ranks here"
    ),
    own_reduce="`reduce` was passed, but {got}: it must add up the ranks' parts, once",
    **layers.texts(
        "wrong_dimension",
        "strided",
        "whole_weights",
        "not_summed",
        "not_own_memory",
        "sends_more",
        "kept_whole",
        "not_refused",
    ),
)


@check_of(MISTAKES)
def vocabulary_embedding(check: Check) -> str:
    """Check rows, gradients, memory, and calls; tokens of one rank only; another `reduce`."""
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
    case.wrong = lambda *given: _wrong(case, *given)
    layers.compare(trial, case)
    _other_reduce(trial, case)


def _wrong(
    case: layers.Case, right: dict[str, Tensor], gradient: Tensor, rank: int, ranks: int
) -> Iterator[layers.Variant]:
    parts, of_weight = case.make().weight.detach().chunk(ranks), gradient_of("weight")
    own, tokens, count = right[of_weight].chunk(ranks), case.x, len(parts[0])
    yield of_weight, "summed_rows", sum(own)
    local = [tokens - r * count for r in range(ranks)]
    for rows in (  # that each rank looks up for all tokens
        [one.clamp(0, count - 1) for one in local],
        [torch.where((one >= 0) & (one < count), one, 0) for one in local],
        [tokens % count] * ranks,
    ):
        yield OUTPUT, "not_masked", sum(p[i] for p, i in zip(parts, rows, strict=True))
        learned = torch.zeros_like(own[rank])
        learned.index_add_(0, rows[rank].flatten(), gradient.flatten(0, 1))
        yield of_weight, "trace", learned


def _other_reduce(trial: Trial, case: layers.Case) -> None:
    """Require that `reduce` makes the output of two batches from parts that add up to the rows."""
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
        if len(given) != 2:
            return MISTAKES.own_reduce(got=f"is called {len(given)} times for two batches")
        if not all(same(one, 3 * rows, TOLERANCE) for one, rows in zip(got, given, strict=True)):
            return MISTAKES.own_reduce(got="the layer does not return its result")
        if trial.size > 1 and trial.calls[trial.rank]:
            return MISTAKES.own_reduce(got="something else is sent as well")
        for which, batch, *parts in zip(("first", "second"), batches, *everyone, strict=True):
            right = case.make()(batch).detach()
            if found := equal(sum(parts), right, f"the sum of the {which} batch", TOLERANCE):
                return found
        return None

    trial.require(used)
