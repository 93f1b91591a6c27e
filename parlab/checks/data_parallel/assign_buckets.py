"""Exercise `assign_buckets`."""

from collections.abc import Iterator
from operator import eq
from typing import Any

from torch import nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import instead, is_a
from parlab.checks.data_parallel.models import Awkward, Tensors, awkward_model
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import trainable

Names = list[list[str]]

MISTAKES = Mistakes(
    frozen="frozen.weight is in a bucket: no gradient ever comes for it, and its bucket waits",
    tied_twice="embed.weight, tied to unembed.weight, is in the buckets twice",
    left_out="{name} is in no bucket",
    forward_order=(
        "the buckets are in the model's order: backward finishes the last layers first, so the "
        "first bucket would be ready last. Go through the parameters in reverse"
    ),
    buckets_reversed=(
        "the buckets are filled in the model's order and then reversed: inside a bucket, too, the "
        "last layers come first"
    ),
    forward_inside=(
        "the buckets are right, but inside each the parameters are in the model's order: the "
        "gradient that is complete first comes first"
    ),
    gaps_filled=(
        "a parameter goes into an earlier bucket that has room left: that one can leave only when "
        "this late gradient is there, too. Only the last bucket takes more"
    ),
    empty_bucket="bucket {i} is empty: where its first parameter is over the limit, it stays so",
    elements="the limit counts elements, not bytes: an element of {dtype} has {width} bytes",
    one_width="each element counts as {width} bytes: a parameter of another dtype has others",
    exact_fit="a bucket of exactly bucket_bytes is allowed: open a new one only beyond that",
    over_the_limit=(
        "a bucket is closed when it is over the limit already: open a new one before the "
        "parameter that would go over it"
    ),
    joined_large=(
        "a parameter that is larger than bucket_bytes shares its bucket with the next: it must be "
        "alone"
    ),
)


@check_of(MISTAKES)
def assign_buckets(check: Check) -> str:
    """Check awkward models of one dtype and of two, at limits met to the byte, and around."""
    mixed = awkward_model(check.draw)
    mixed.hidden.float()
    with check.trial() as trial:
        for model in (awkward_model(check.draw).float(), awkward_model(check.draw), mixed):
            dtypes = {str(p.dtype): None for p in trainable(model).values()}
            trial.situation = f"with parameters of {' and '.join(dtypes)}"
            limits = limits_of(list(trainable_bytes(model).values()))
            tensors = Tensors(model)
            answers = trial.run_function(
                lambda model=model, limits=limits: {n: check.function(model, n) for n in limits}
            )
            trial.require(
                lambda: form(answers, model),
                tensors.kept,
                lambda: judge({n: bucket_names(b, model) for n, b in answers.items()}, model),
            )
    return "reverse order, full buckets at every limit, to the byte, each trainable tensor once"


def limits_of(sizes: list[int]) -> list[int]:
    """Every limit that some parameters in a row meet exactly, one byte more and one less; 1."""
    runs = [sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)]
    return sorted({1, *(run + more for run in runs for more in (-1, 0, 1))}, reverse=True)


def trainable_bytes(model: nn.Module) -> dict[str, int]:
    """Bytes of each trainable parameter, in the model's order."""
    return {name: p.numel() * p.element_size() for name, p in trainable(model).items()}


def form(answers: dict[int, Any], model: nn.Module) -> Finding | None:
    known = {id(p) for p in model.parameters()}
    for buckets in answers.values():
        if buckets is None:
            return COMMON.returns_none()
        if not isinstance(buckets, list) or not all(isinstance(b, list) for b in buckets):
            shown = f"a {type(buckets).__name__}"
            if isinstance(buckets, list) and buckets:
                shown = f"a list of {type(buckets[0]).__name__}s"
            return COMMON.wrong_type(
                name="the result", got=shown, right="a list of buckets, each a list of parameters"
            )
        for entry in (entry for bucket in buckets for entry in bucket):
            if id(entry) not in known:
                own = "one of the model's own parameters"
                return is_a(entry, (), own, "an entry of a bucket")
    return None


def bucket_names(buckets: list[list[nn.Parameter]], model: nn.Module) -> Names:
    """The buckets by the parameters' names; an unknown one is "?"."""
    known = {id(p): name for name, p in model.named_parameters()}
    return [[known.get(id(p), "?") for p in bucket] for bucket in buckets]


def judge(answers: dict[int, Names], model: Awkward) -> Finding | None:
    """What is wrong with the buckets, by limit; None when all are right."""
    sizes = trainable_bytes(model)
    wrong = [limit for limit, names in answers.items() if names != packed(sizes, limit)]
    if not wrong:
        return None
    for limit in answers:
        if found := contents([n for bucket in answers[limit] for n in bucket], list(sizes)):
            return found
    right = [packed(sizes, limit) for limit in answers]
    if found := instead([*answers.values()], right, _wrong(model, [*answers]), eq):
        return found
    for names in answers.values():
        if [] in names:
            return MISTAKES.empty_bucket(i=names.index([]))
    return evidence(
        f"for bucket_bytes {wrong[0]} the buckets are {answers[wrong[0]]} where "
        f"{packed(sizes, wrong[0])} are right; the bytes are {sizes}"
    )


def _wrong(model: Awkward, limits: list[int]) -> Iterator[tuple[list[Names], Finding]]:
    sizes, parameters = trainable_bytes(model), trainable(model)
    width = model.unused.element_size()
    elements = {name: p.numel() for name, p in parameters.items()}
    one_width = {name: count * width for name, count in elements.items()}
    forward = dict(reversed(sizes.items()))
    of_elements = MISTAKES.elements(dtype=model.unused.dtype, width=width)
    yield [packed(elements, limit) for limit in limits], of_elements
    yield [packed(one_width, limit) for limit in limits], MISTAKES.one_width(width=width)
    yield [packed(sizes, limit - 1) for limit in limits], MISTAKES.exact_fit()
    yield [_closed_late(sizes, limit) for limit in limits], MISTAKES.over_the_limit()
    yield [_closed_late(sizes, limit - 1) for limit in limits], MISTAKES.over_the_limit()
    yield [_joined(sizes, limit) for limit in limits], MISTAKES.joined_large()
    yield [packed(forward, limit) for limit in limits], MISTAKES.forward_order()
    yield [packed(forward, limit)[::-1] for limit in limits], MISTAKES.buckets_reversed()
    inside = [[names[::-1] for names in packed(sizes, limit)] for limit in limits]
    yield inside, MISTAKES.forward_inside()
    yield [_first_fit(sizes, limit) for limit in limits], MISTAKES.gaps_filled()


def contents(flat: list[str], names: list[str]) -> Finding | None:
    """What is in the buckets that should not be, or is not."""
    if "frozen.weight" in flat:
        return MISTAKES.frozen()
    if flat.count("embed.weight") > 1:
        return MISTAKES.tied_twice()
    if missing := [name for name in names if name not in flat]:
        return MISTAKES.left_out(name=missing[0])
    return None


def packed(sizes: dict[str, int], limit: int) -> Names:
    """The right buckets for parameters of these bytes, given in the model's order."""
    buckets: Names = []
    room = -1
    for name, size in reversed(sizes.items()):
        if size > room:
            buckets.append([])
            room = limit
        buckets[-1].append(name)
        room -= size
    return buckets


def _closed_late(sizes: dict[str, int], limit: int) -> Names:
    buckets: Names = []
    total = limit + 1
    for name, size in reversed(sizes.items()):
        if total > limit:
            buckets.append([])
            total = 0
        buckets[-1].append(name)
        total += size
    return buckets


def _first_fit(sizes: dict[str, int], limit: int) -> Names:
    """Each parameter in the first bucket that has room for it."""
    buckets: Names = []
    for name, size in reversed(sizes.items()):
        held = [sum(sizes[other] for other in bucket) for bucket in buckets]
        fits = [i for i, total in enumerate(held) if total + size <= limit]
        if fits:
            buckets[fits[0]].append(name)
        else:
            buckets.append([name])
    return buckets


def _joined(sizes: dict[str, int], limit: int) -> Names:
    """A parameter over the limit does not fill its bucket."""
    buckets: Names = []
    total = 0
    for name, size in reversed(sizes.items()):
        if not buckets or total + size > limit:
            buckets.append([])
            total = 0
        buckets[-1].append(name)
        total += size if size <= limit else 0
    return buckets
