"""Exercise `gradient_exponents`: gradients of known outputs, and numbers near powers of two."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_numbers, has_type, same_states
from parlab.checks.base.mistakes import Finding, Mistakes, observed

MISTAKES = Mistakes(
    hooks_left=(
        "a hook is left on a layer, so every later pass counts again. `register_forward_hook` "
        "returns a handle; call its `remove()`"
    ),
    gradient_changed=(
        "the parameters' gradients are not those from before plus those of run(). The value that a "
        "tensor's hook returns replaces the gradient: return None, and change nothing in place"
    ),
    half_to_one=(
        "all exponents are one too high: the fraction of `frexp` lies between 0.5 and 1, not "
        "between 1 and 2"
    ),
    last_use_only="a layer that runs twice has two outputs. Count the gradients of both",
)


class Twice(nn.Module):
    """A model in which `shared` runs twice, and a ReLU makes zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width + 1)
        self.shared = nn.Linear(width + 1, width + 1)
        self.last = nn.Linear(width + 1, 3)

    def outputs(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of all layers, in order."""
        first = self.first(x)
        once = self.shared(torch.relu(first))
        again = self.shared(torch.tanh(once))
        return [first, once, again, self.last(torch.relu(again))]

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(x)[-1]


# A model, some of its layers, a backward pass, and the gradients of the layers' outputs.
Case = tuple[nn.Module, list[nn.Module], Callable[[], None], list[Tensor]]


def cases(draw: Random) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield models in several dtypes, some with four outputs, and some with chosen gradients."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield str(dtype)[6:], partial(with_four_outputs, draw, dtype)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        near = partial(with_gradient, chosen(dtype))
        yield f"{str(dtype)[6:]}, numbers near powers of two", near
    yield "a gradient that is transposed in memory", transposed


def with_four_outputs(draw: Random, dtype: torch.dtype) -> Case:
    scale = 2.0**3 if dtype is torch.float32 else 2.0**-4  # some above 1, some far below
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        model = Twice(draw.randrange(5, 9)).to(dtype)
        x = torch.randn(12, model.first.in_features, dtype=dtype)

    def loss(output: Tensor) -> Tensor:
        return output.float().square().sum() * scale

    outputs = model.outputs(x)
    gradients = list(torch.autograd.grad(loss(outputs[-1]), outputs))
    layers = [model.last, model.shared, model.first]
    return model, layers, lambda: loss(model(x)).backward(), gradients


def with_gradient(gradient: Tensor) -> Case:
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(2, len(gradient))).to(gradient.dtype)
    x = torch.ones(1, 2, dtype=gradient.dtype)
    return model, [model[0]], lambda: (model(x) * gradient).sum().backward(), [gradient]


def transposed() -> Case:
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(2, 3))
    x, gradient = torch.ones(4, 2), torch.tensor([[0.5], [2.0], [0.0]]).repeat(1, 4)
    return model, [model[0]], lambda: (model(x).t() * gradient).sum().backward(), [gradient]


def chosen(dtype: torch.dtype) -> Tensor:
    """Return powers of two, the numbers just below them, and zeros, all exact in float32."""
    top, low = (14, -14) if dtype == torch.float16 else (100, -100)
    digits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    powers = [2.0**e for e in range(low, top, 3)]
    below = [power * (1 - 2.0**-digits) for power in powers]
    return torch.tensor([*powers, 0.0, *(-x for x in below), -0.0, *below], dtype=dtype)


@check_of(MISTAKES, ranks=1)
def gradient_exponents(check: Check) -> str:
    """Compare the counts, and require that nothing else changes."""
    with check.trial() as trial:
        for _, make in trial.cases(dict(cases(trial.draw))):
            model, layers, run, gradients = make()
            run()
            # The next pass adds the same gradients again.
            twice = {name: 2 * gradient for name, gradient in gradients_of(model).items()}
            for layer in (model, layers[0]):
                layer.register_forward_hook(lambda *_: None)
            before, passes = hooks(model), []
            got = trial.run(layers, lambda run=run, passes=passes: passes.append(run()))
            trial.require(
                lambda: has_type(got, Mapping, "a dict of counts by exponent"),
                lambda: hooks_unchanged(hooks(model), before),
                lambda: equal_numbers([len(passes)], [1], "the number of calls of run()", 0.0),
                lambda: gradients_are(gradients_of(model), twice),
                lambda: counted(got, gradients),
            )
    return "each number under its exponent, zeros under None, in four dtypes; no hook is left"


def hooks(model: nn.Module) -> set[tuple[int, str, int]]:
    """Return every hook of every layer, as (layer, kind, number)."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {(i, k, n) for i, m in enumerate(model.modules()) for k in kinds for n in getattr(m, k)}


def hooks_unchanged(after: set, before: set) -> Finding | None:
    if before - after:
        return observed("a hook that was on a layer before is gone. Remove only your own")
    return MISTAKES.hooks_left() if after - before else None


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def gradients_are(got: dict[str, Tensor], right: dict[str, Tensor]) -> Finding | None:
    return None if same_states(got, right, 0.0) else MISTAKES.gradient_changed()


def counted(got: Mapping[Any, Any], gradients: list[Tensor]) -> Finding | None:
    """Compare the counts with the right ones."""
    found = Counter({None if k is None else int(k): int(n) for k, n in got.items() if n})
    right = histogram(gradients)
    if found == right:
        return None
    if found == Counter({None if k is None else k + 1: n for k, n in right.items()}):
        return MISTAKES.half_to_one()
    if found == histogram([*gradients[:1], *gradients[2:]]):
        return MISTAKES.last_use_only()
    key = next(key for key in (*right, *found) if found[key] != right[key])
    return observed(
        f"under {key}, {found[key]} numbers are counted, expected {right[key]} "
        f"({sum(found.values())} in total, expected {sum(right.values())})"
    )


def histogram(tensors: list[Tensor]) -> Counter[int | None]:
    numbers = [x for tensor in tensors for x in tensor.double().flatten().tolist()]
    return Counter(math.frexp(x)[1] - 1 if x else None for x in numbers)
