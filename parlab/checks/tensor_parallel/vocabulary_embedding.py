"""Exercise `vocabulary_embedding`."""

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import layers, requirements
from parlab.checks.tensor_parallel.layers import Passed, Right, Share, passes, random, seeded
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    not_masked=(
        "the rows of all ranks are added: a rank that does not have a token has looked up another "
        "row for it, and its part of the sum is to be zero"
    ),
    strided="weight has every N-th row: rank r has the r-th part of the vocabulary, in one piece",
    hidden_split=(
        "weight has shape {got}: that cuts the hidden size. Here the vocabulary is cut, and a rank "
        "has whole rows"
    ),
    trace=(
        "weight's gradient at row {row} has a {got}: that row was looked up for a token of another "
        "rank, and must not learn from it"
    ),
    kept_from_before=(
        "called again with other tokens, the layer gives other rows than a new one: something is "
        "kept of the first call"
    ),
    own_reduce="`reduce` was given, and {got}: it is what adds up the ranks' parts, once",
    **requirements.texts(
        "not_summed",
        "whole_weights",
        "weights_gathered",
        "not_own_memory",
        "memory_of_serial",
        "sends_more",
        "kept_whole",
        "not_refused",
    ),
)


@check_of(MISTAKES)
def vocabulary_embedding(check: Check) -> str:
    """Check rows, gradients, memory and calls; tokens all on one rank, too; another `reduce`."""
    for trial in check.trials():
        for one_rank in (False, True):
            told = "all tokens in one rank's part" if one_rank else "tokens of all parts"
            trial.situation = f"{trial.size} ranks, {told}"
            _one(trial, one_rank)
        trial.situation = f"{trial.size} ranks"
        for vocabulary in (4 * trial.size + 1, trial.size + 1):
            embedding = nn.Embedding(vocabulary, 3)
            requirements.refusal(
                trial,
                lambda embedding=embedding: check.function(embedding, trial.group),
                f"a vocabulary of {vocabulary}",
                [vocabulary],
            )
    return (
        "each rank has its part of the vocabulary, and learns from its own tokens; one sum of "
        f"(batch, seq, h), on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, one_rank: bool) -> None:
    vocabulary = trial.size * trial.draw.randrange(3, 7)
    hidden, seed = trial.draw.randrange(2, 5), trial.draw.getrandbits(32)
    part = vocabulary // trial.size
    first = trial.draw.randrange(trial.size) * part if one_rank else 0
    drawn = [trial.draw.randrange(part if one_rank else vocabulary) + first for _ in range(15)]
    if not one_rank:
        border = trial.draw.randrange(trial.size) * part
        drawn[:4] = [0, vocabulary - 1, border, border - 1 if border else 0]
    tokens = torch.tensor(drawn).view(3, 5)
    weights = random(trial.draw, 3, 5, hidden)

    def serial() -> nn.Module:
        return seeded(seed, lambda: nn.Embedding(vocabulary, hidden))

    right = layers.serially(serial(), tokens, layers.weighing(weights))
    passed = trial.run_function(
        passes,
        trial,
        serial,
        lambda embedding: trial.check.function(embedding, trial.group),
        tokens,
        layers.weighing(weights),
        seconds=layers.SECONDS,
    )
    shares = {"weight": Share(0)}
    everyone = trial.gather(passed)
    trial.require(
        lambda: instead(passed, right, trial),
        lambda: requirements.holds_its_share(passed, right, shares, trial),
        lambda: requirements.untouched(passed, "`tokens`"),
        lambda: output_is(passed, right, everyone, tokens, trial),
        lambda: learned(passed, right, tokens, weights, trial),
        lambda: requirements.gradients_are(passed, right, shares, everyone, trial),
        lambda: requirements.sends(
            passed.forward,
            weights.nbytes,
            trial.size,
            "forward",
            right.parameters["weight"].nbytes,
        ),
        lambda: requirements.sends(passed.backward, 0, trial.size, "backward"),
    )
    _other_reduce(trial, serial, tokens, right)
    _again(trial, serial, tokens)


def instead(passed: Passed, right: Right, trial: Trial) -> Finding | None:
    got, whole = passed.parameters.get("weight"), right.parameters["weight"]
    if got is None or trial.size == 1:
        return None
    if got.shape[0] == whole.shape[0] and got.shape[1] < whole.shape[1]:
        return MISTAKES.hidden_split(got=tuple(got.shape))
    return MISTAKES.strided() if same(got, whole[trial.rank :: trial.size]) else None


def output_is(
    passed: Passed, right: Right, everyone: list[Passed], tokens: Tensor, trial: Trial
) -> Finding | None:
    got, size = passed.output, trial.size
    if size > 1 and not same(got, right.output, TOLERANCE):
        parts = right.parameters["weight"].chunk(size)
        count = len(parts[0])
        local = [tokens - r * count for r in range(size)]
        inside = [(one >= 0) & (one < count) for one in local]
        for index in (
            [one.clamp(0, count - 1) for one in local],
            [one * there for one, there in zip(local, inside, strict=True)],
            [one % count for one in local],
        ):
            if same(got, sum(p[i] for p, i in zip(parts, index, strict=True)), TOLERANCE):
                return MISTAKES.not_masked()
        if same(sum(p.output for p in everyone), right.output, TOLERANCE):
            return MISTAKES.not_summed(name="the output")
    return equal(got, right.output, "the output", TOLERANCE)


def learned(
    passed: Passed, right: Right, tokens: Tensor, weights: Tensor, trial: Trial
) -> Finding | None:
    """Whether rows learn from this rank's tokens alone; `weights` are the output's."""
    gradient = passed.gradients["weight"]
    if gradient is None or gradient.shape != passed.parameters["weight"].shape:
        return None
    count = len(gradient)
    local = (tokens - trial.rank * count).flatten()
    inside = (local >= 0) & (local < count)
    looked_up = torch.zeros(count, dtype=torch.bool)
    looked_up[local[inside]] = True
    wrong = gradient.ne(0).any(dim=1) & ~looked_up
    # A row that its own tokens asked for as well: known by what the others add to it.
    own = right.gradients["weight"].chunk(trial.size)[trial.rank]
    for row_of in (local.clamp(0, count - 1), local % count, local * inside):
        every = torch.zeros_like(own).index_add_(0, row_of, weights.flatten(0, 1))
        if same(gradient, every, TOLERANCE) and not same(every, own, TOLERANCE):
            wrong |= (every - own).abs().amax(dim=1) > TOLERANCE
    if not wrong.any():
        return None
    row = int(wrong.nonzero()[0])
    return MISTAKES.trace(row=row, got=f"{gradient[row].abs().max().item():.4g}")


def _other_reduce(trial: Trial, serial, tokens: Tensor, right: Right) -> None:  # type: ignore[no-untyped-def]
    """Given `reduce`, the output is what that returns, and nothing else is sent."""
    seen: list[Tensor] = []

    def reduce(rows: Tensor) -> Tensor:
        seen.append(rows.detach().clone())
        return rows * 3

    def run() -> Tensor:
        return trial.check.function(serial(), trial.group, reduce)(tokens).detach()

    got = trial.run_function(run, seconds=layers.SECONDS)
    rows = trial.gather(seen)

    def used() -> Finding | None:
        if len(seen) != 1:
            return MISTAKES.own_reduce(got=f"called {len(seen)} times")
        if not same(got, 3 * seen[0], TOLERANCE):
            return MISTAKES.own_reduce(got="its result is not what comes out")
        if trial.size > 1 and trial.calls[trial.rank]:
            return MISTAKES.own_reduce(got="something else was sent as well")
        if not same(sum(one[0] for one in rows), right.output, TOLERANCE):
            return evidence("what the ranks give to `reduce` does not add up to the rows")
        return None

    trial.require(used)


def _again(trial: Trial, serial, tokens: Tensor) -> None:  # type: ignore[no-untyped-def]
    """What the same layer gives for other tokens of the same shape."""
    others = tokens.flip(0, 1)

    def run() -> Tensor:
        layer = trial.check.function(serial(), trial.group)
        layer(tokens)
        return layer(others).detach()

    got = trial.run_function(run, seconds=layers.SECONDS)
    right = serial()(others).detach()
    trial.require(lambda: None if same(got, right, TOLERANCE) else MISTAKES.kept_from_before())
