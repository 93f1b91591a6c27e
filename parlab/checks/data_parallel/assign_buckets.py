"""Exercise `assign_buckets`."""

from typing import Any

from torch import nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import a_type_of, has_type
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import trainable
from parlab.checks.data_parallel._buckets import Names, bucket_names, filled, trainable_bytes
from parlab.checks.data_parallel._models import Tensors, awkward_model

MISTAKES = Mistakes(
    frozen="frozen.weight is in a bucket. It never gets a gradient, so its bucket would wait",
    tied_twice="embed.weight is in the buckets twice. It is the same parameter as unembed.weight",
    forward_order=(
        "the parameters are in the model's order. The backward pass finishes the last layers "
        "first, so go through the parameters in reverse"
    ),
    elements="the limit is compared with numbers of elements. Count bytes",
    exact_fit="a bucket of exactly bucket_bytes is allowed. Open a new one only above the limit",
)


@check_of(MISTAKES, ranks=1)
def assign_buckets(check: Check) -> str:
    """Check models of one dtype and of two, with limits around all sums of sizes."""
    mixed = awkward_model(check.draw)
    mixed.hidden.float()
    models = {
        "float32 parameters": awkward_model(check.draw).float(),
        "float64 parameters": awkward_model(check.draw),
        "float32 and float64 parameters": mixed,
    }
    with check.trial() as trial:
        for _, model in trial.cases(models):
            limits = limits_of(list(trainable_bytes(model).values()))
            tensors = Tensors(model)
            answers = trial.run_function(
                lambda model=model, limits=limits: {n: check.function(model, n) for n in limits}
            )
            trial.require(
                lambda: next(filter(None, (form(b, model) for b in answers.values())), None),
                tensors.kept,
                lambda: judge({n: bucket_names(b, model) for n, b in answers.items()}, model),
            )
    return "reverse order, full buckets at every limit, to the byte, each trainable tensor once"


def limits_of(sizes: list[int]) -> list[int]:
    """Return 1, and each limit that consecutive parameters meet, miss, or exceed by a byte."""
    runs = [sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)]
    return sorted({1, *(run + more for run in runs for more in (-1, 0, 1))}, reverse=True)


def form(buckets: Any, model: nn.Module) -> Finding | None:
    if found := has_type(buckets, list, "a list of buckets"):
        return found
    known = {id(p) for p in model.parameters()}
    for bucket in buckets:
        if found := has_type(bucket, list, "a list of parameters", "a bucket"):
            return found
        for entry in bucket:
            if id(entry) not in known:
                kind = a_type_of(entry)
                right = "one of the model's parameters"
                return COMMON.wrong_type(name="an entry of a bucket", got=kind, right=right)
    return None


def judge(answers: dict[int, Names], model: nn.Module) -> Finding | None:
    """Name the mistake that explains the buckets for all limits, or report the first wrong ones."""
    sizes = trainable_bytes(model)
    found = {limit: filled(names, sizes, limit) for limit, names in answers.items()}
    wrong = [limit for limit, finding in found.items() if finding]
    if not wrong:
        return None
    order = [name for bucket in answers[wrong[0]] for name in bucket]
    if "frozen.weight" in order:
        return MISTAKES.frozen()
    if order.count("embed.weight") > 1:
        return MISTAKES.tied_twice()
    elements = {name: p.numel() for name, p in trainable(model).items()}
    variants = {
        "forward_order": (dict(reversed(sizes.items())), 0),
        "elements": (elements, 0),
        "exact_fit": (sizes, -1),
    }
    for key, (counted, more) in variants.items():
        if not any(filled(names, counted, limit + more) for limit, names in answers.items()):
            return getattr(MISTAKES, key)()
    return observed(f"with bucket_bytes {wrong[0]}, {found[wrong[0]].text}")
