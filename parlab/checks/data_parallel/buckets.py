"""Exercise `assign_buckets`: which gradients travel together."""

import random
from collections.abc import Callable

from torch import nn

from parlab.checks.base import Check, fresh_seed
from parlab.checks.data_parallel.common import awkward_model

Assign = Callable[[nn.Module, int], list[list[nn.Parameter]]]
Names = list[list[str]]


def assign_buckets(function: Assign) -> None:
    """Check awkward models in two dtypes, at limits that are met exactly or cannot be met."""
    check = Check("assign_buckets")
    seed = fresh_seed()
    draw = random.Random(seed)
    for model in (awkward_model(seed, seed).float(), awkward_model(seed + 1, seed)):
        sizes = trainable_bytes(model)
        exact = sizes["unembed.bias"] + sizes["hidden.bias"]
        limits = [1, exact, exact - 1, sum(sizes.values()), draw.randrange(exact, 4 * exact)]
        answers: dict[int, Names] = {}
        for limit in limits:
            with check.communicator() as comm:
                buckets = check.call(function, model, limit, comm=comm)
            names = bucket_names(buckets, model)
            check.agree(names if isinstance(names, str) else None)
            answers[limit] = names
        check.agree(_judge(answers, model))
    check.passed("reverse order, full buckets, each trainable tensor once")


def trainable_bytes(model: nn.Module) -> dict[str, int]:
    """Bytes of each trainable parameter, in the model's order."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return {name: p.numel() * p.element_size() for name, p in trainable}


def bucket_names(buckets: object, model: nn.Module) -> Names | str:
    """The buckets as names, or what is wrong with their form."""
    if buckets is None:
        return "it returns None: is a `return` missing?"
    if not isinstance(buckets, list) or not all(isinstance(b, list) for b in buckets):
        return "it must return a list of buckets, each a list of parameters"
    known = {id(p): name for name, p in model.named_parameters()}
    if any(id(p) not in known for bucket in buckets for p in bucket):
        return "a bucket holds something that is not a parameter of the model"
    return [[known[id(p)] for p in bucket] for bucket in buckets]


def _judge(answers: dict[int, Names], model: nn.Module) -> str | None:
    """What is wrong with the buckets for some limit; None when all are right."""
    sizes = trainable_bytes(model)
    wrong = [limit for limit, names in answers.items() if names != packed(sizes, limit)]
    if not wrong:
        return None
    names = answers[wrong[0]]
    if problem := _contents([name for bucket in names for name in bucket], list(sizes)):
        return problem
    width = model.unused.element_size()
    elements = {name: size // width for name, size in sizes.items()}
    mistakes = [
        (
            lambda limit: packed(elements, limit),
            f"the limit counts elements, not bytes: here an element has {width} bytes",
        ),
        (
            lambda limit: packed(sizes, limit - 1),
            "a bucket of exactly bucket_bytes is allowed: open a new one only beyond that",
        ),
        (
            lambda limit: _closed_late(sizes, limit),
            "a bucket is closed when it is over the limit already: open a new bucket before the "
            "parameter that would go over the limit",
        ),
    ]
    for mistake, text in mistakes:
        if all(names == mistake(limit) for limit, names in answers.items()):
            return text
    right = packed(sizes, wrong[0])
    return f"for bucket_bytes {wrong[0]} the buckets are {names} where {right} are right"


def _contents(flat: list[str], names: list[str]) -> str | None:
    """What is in the buckets that should not be, or is not, or in the wrong order."""
    if "frozen.weight" in flat:
        return "frozen.weight is in a bucket: no gradient ever comes for it, and its bucket waits"
    if flat.count("embed.weight") > 1:
        return "embed.weight, tied to unembed.weight, is in the buckets twice"
    if missing := [name for name in names if name not in flat]:
        return f"{missing[0]} is in no bucket"
    if flat == names:
        return (
            "the buckets are in the model's order: backward finishes the last layers first, so the "
            "first bucket would be ready last. Go through the parameters in reverse"
        )
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
