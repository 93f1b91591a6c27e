"""Exercise `gradient_exponents`."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import is_a, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    hooks_left=(
        "a hook is left on a layer: every pass from now on counts, and each call adds another. "
        "`register_forward_hook` returns a handle, whose `remove()` takes it off"
    ),
    gradient_changed=(
        "the model's gradients are other than without you: what a tensor's hook returns takes the "
        "gradient's place, and so does what it changes in place. Let it return None"
    ),
    gradients_removed=(
        "the model's gradients are not there any more, or those from before run(): whoever calls "
        "you goes on with them"
    ),
    others_hooks_removed="a hook that was on a layer before is gone: take off your own alone",
    runs_again="run() is called {got} times: each pass adds its gradients to those there are",
    earlier_calls_counted=(
        "what an earlier call has counted is in it as well: begin with an empty count in each call"
    ),
    logarithm_rounded=(
        "numbers just below a power of two are counted with it: in so few digits their logarithm "
        "rounds up to an integer. `frexp` takes the exponent as it is"
    ),
    small_as_zeros=(
        "{got} numbers are counted as zeros where {right} are zero: in the gradient's own dtype, "
        "or in float32, the others have an exponent"
    ),
    rounded_first=(
        "the gradients are rounded to float16 before they are counted: small ones become zeros, "
        "and others reach the next power of two. Count them as they are"
    ),
    half_to_one=(
        "all exponents are one too high: `frexp` has a fraction from a half to 1, and the exponent "
        "asked for goes with one from 1 to 2"
    ),
    rounded="exponents are rounded to the nearest integer: 2ᵉ is the power of two *below* |g|",
    towards_zero=(
        "exponents are cut off towards zero: −3.5 lies between −4 and −3, and 2ᵉ is the power of "
        "two *below* |g|. Take the floor"
    ),
    negatives_missing=(
        "negative numbers are not counted: the exponent is that of |g| (a negative number has no "
        "logarithm)"
    ),
    zeros_missing="zeros are not counted: they are under the key None",
    zeros_as_numbers="zeros are counted under an exponent, which they have not: the key is None",
    parameters_counted=(
        "that counts the gradients of the parameters: asked for are those of the layers' outputs"
    ),
    inputs_counted=(
        "that counts the gradients of the layers' inputs: asked for are those of their outputs"
    ),
    last_use_only="a layer that runs twice has two outputs, and both gradients count",
    values_counted="that counts the outputs themselves: asked for are their gradients",
)


class Twice(nn.Module):
    """`shared` is used twice; a ReLU makes zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width + 1)
        self.shared = nn.Linear(width + 1, width + 1)
        self.last = nn.Linear(width + 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.shared(torch.tanh(self.shared(x)))))


@check_of(MISTAKES)
def gradient_exponents(check: Check) -> str:
    """Check models of three dtypes, with a layer that is used twice, and what is left behind."""
    with check.trial() as trial:
        earlier: Counter[int | None] = Counter()
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            trial.situation = str(dtype)[6:]
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(trial.draw.getrandbits(32))
                model = Twice(trial.draw.randrange(5, 9)).to(dtype)
                x = torch.randn(12, model.first.in_features, dtype=dtype)
            power = 3 if dtype is torch.float32 else -4  # some are above 1, some far below

            def run(model: nn.Module = model, x: Tensor = x, power: int = power) -> None:
                (model(x).float().square().sum() * 2.0**power).backward()

            _counted(trial, model, [model.last, model.shared, model.first], run, earlier)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            trial.situation = f"{str(dtype)[6:]}, numbers near powers of two"
            given = chosen(dtype)
            model = nn.Sequential(nn.Linear(2, len(given))).to(dtype)

            def run(model: nn.Module = model, given: Tensor = given) -> None:
                (model(torch.ones(1, 2, dtype=given.dtype)) * given).sum().backward()

            _counted(trial, model, [model[0]], run, earlier)
    return "each number under its exponent, zeros under None, in four dtypes; no hook is left"


def _counted(
    trial: Trial,
    model: nn.Module,
    layers: list[nn.Module],
    run: Callable[[], None],
    earlier: Counter[int | None],
) -> None:
    """One model's counts, and what is left behind; `earlier` are those of the calls before."""
    passes: list[int] = []

    def counted_run() -> None:
        passes.append(1)
        run()

    seen = watched(layers, run)
    twice = [2 * p.grad for p in model.parameters()]  # the next pass adds the same once more
    others = (
        model.register_forward_hook(lambda *_: None),
        layers[0].register_forward_hook(lambda *_: None),
    )
    before = [dict(layer._forward_hooks) for layer in model.modules()]
    got = trial.run(layers, counted_run)
    right = histogram(seen["outputs"])
    gradients = [p.grad for p in model.parameters()]
    trial.require(
        lambda: is_a(got, Mapping, "a dict of counts by exponent"),
        lambda: nothing_left(model, before),
        lambda: once(len(passes)),
        lambda: unchanged(gradients, twice),
        lambda: counts(got, right, seen, earlier),
    )
    earlier.update(right)
    for one in others:
        one.remove()


def chosen(dtype: torch.dtype) -> Tensor:
    """Powers of two, the numbers just below them, and zeros; float32 holds them all."""
    top, low = (14, -14) if dtype == torch.float16 else (100, -100)
    digits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    powers = [2.0**e for e in range(low, top, 3)]
    below = [power * (1 - 2.0**-digits) for power in powers]
    return torch.tensor([*powers, 0.0, *(-x for x in below), -0.0, *below], dtype=dtype)


def watched(layers: list[nn.Module], run: Callable[[], None]) -> dict[str, list[Tensor]]:
    """Gradients of all outputs and inputs of the layers, the outputs, and parameters' gradients."""
    seen: dict[str, list[Tensor]] = {"outputs": [], "inputs": [], "values": []}
    uses: dict[nn.Module, list[Tensor]] = {}

    def look(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        seen["values"].append(output.detach().clone())
        output.register_hook(lambda g: uses.setdefault(layer, []).append(g.clone()))
        if given[0].requires_grad:
            given[0].register_hook(lambda g: seen["inputs"].append(g.clone()))

    handles = [layer.register_forward_hook(look) for layer in layers]
    run()
    for handle in handles:
        handle.remove()
    seen["outputs"] = [g for layer in layers for g in uses[layer]]
    seen["first use"] = [uses[layer][-1] for layer in layers]  # the backward pass ends with it
    seen["last use"] = [uses[layer][0] for layer in layers]
    # As they are after the next pass, which adds the same.
    seen["parameters"] = [2 * p.grad for layer in layers for p in layer.parameters()]
    return seen


def histogram(
    tensors: list[Tensor], exponent: Callable[[float], int] | None = None
) -> Counter[int | None]:
    exponent = exponent or (lambda size: math.frexp(size)[1] - 1)
    numbers = [abs(x) for tensor in tensors for x in tensor.double().flatten().tolist()]
    return Counter(exponent(x) if x else None for x in numbers)


def nothing_left(model: nn.Module, before: list[dict]) -> Finding | None:
    now = [dict(layer._forward_hooks) for layer in model.modules()]
    others = [
        *(layer._forward_pre_hooks for layer in model.modules()),
        *(layer._backward_hooks for layer in model.modules()),
        *(layer._backward_pre_hooks for layer in model.modules()),
    ]
    if any(key not in b for a, b in zip(before, now, strict=True) for key in a):
        return MISTAKES.others_hooks_removed()
    return MISTAKES.hooks_left() if now != before or any(others) else None


def once(passes: int) -> Finding | None:
    if passes == 1:
        return None
    return MISTAKES.runs_again(got=passes) if passes else evidence("run() is not called")


def unchanged(got: list[Tensor | None], right: list[Tensor]) -> Finding | None:
    if all(a is not None and same(a, b) for a, b in zip(got, right, strict=True)):
        return None
    halves = [b / 2 for b in right]
    if any(
        a is None or (not a.any() and bool(b.any())) or (same(a, half) and bool(b.any()))
        for a, b, half in zip(got, right, halves, strict=True)
    ):
        return MISTAKES.gradients_removed()
    return MISTAKES.gradient_changed()


def counts(
    got: Mapping[Any, int], right: Counter, seen: dict[str, list[Tensor]], earlier: Counter
) -> Finding | None:
    found = {_key(key): int(n) for key, n in got.items() if n}
    if found == right:
        return None
    if earlier and found == right + earlier:
        return MISTAKES.earlier_calls_counted()
    for value, finding in wrong(right, seen):
        if found == {key: n for key, n in value.items() if n}:
            return finding
    missing = sum(right.values()) - sum(found.values())
    if missing:
        return evidence(
            f"{sum(found.values())} numbers are counted where the gradients have "
            f"{sum(right.values())}"
        )
    if found.get(None, 0) > right[None]:
        return MISTAKES.small_as_zeros(got=found[None], right=right[None])
    key = next(key for key in [*right, *found] if found.get(key, 0) != right[key])
    return evidence(
        f"{found.get(key, 0)} numbers are counted under {key} where {right[key]} are right"
    )


def _key(key: Any) -> int | None:
    return None if key is None else int(key)


def wrong(right: Counter, seen: dict[str, list[Tensor]]) -> Iterator[tuple[Mapping, Finding]]:
    """What each mistake counts."""
    numbers = Counter({e: n for e, n in right.items() if e is not None})
    zeros = right[None]
    yield numbers, MISTAKES.zeros_missing()
    for at in (0, -1, *range(min(numbers) - 3, min(numbers)), -149, -150, -24, -25):
        yield numbers + Counter({at: zeros}), MISTAKES.zeros_as_numbers()
    shifted = Counter({e + 1: n for e, n in numbers.items()})
    yield shifted + Counter({None: zeros}), MISTAKES.half_to_one()
    outputs = seen["outputs"]
    positive = histogram([g[g > 0] for g in outputs])
    for found in (positive + Counter({None: zeros}), positive):
        yield found, MISTAKES.negatives_missing()
    halves = [g.half() for g in outputs]
    for found in (halves, [g.clamp(-65504, 65504) for g in halves]):
        yield histogram(found), MISTAKES.rounded_first()
    yield histogram(outputs, lambda x: round(math.log2(x))), MISTAKES.rounded()
    yield histogram(outputs, lambda x: math.trunc(math.log2(x))), MISTAKES.towards_zero()
    for dtype in (outputs[0].dtype, torch.float32):
        logarithms = [torch.log2(g.to(dtype).abs()).floor() for g in outputs]
        found = [e for one in logarithms for e in one.flatten().tolist()]
        yield (
            Counter(None if e == -math.inf else int(e) for e in found),
            (MISTAKES.logarithm_rounded()),
        )
    yield histogram(seen["first use"]), MISTAKES.last_use_only()
    yield histogram(seen["last use"]), MISTAKES.last_use_only()
    yield histogram(seen["parameters"]), MISTAKES.parameters_counted()
    yield histogram(seen["inputs"]), MISTAKES.inputs_counted()
    yield histogram(seen["values"]), MISTAKES.values_counted()
