"""Exercise `fused_adam`."""

import copy
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import a_type_of, equal, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.triton import _adam, _kernels
from parlab.checks.triton._adam import Settings, trained
from parlab.checks.triton._kernels import unless
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import launches
from parlab.rank import device

MISTAKES = Mistakes(
    counted_without_gradient=(
        "a step in which a parameter has no gradient counts for that parameter. Give each "
        "parameter its own step count"
    ),
    gradient_strides=(
        "a gradient with other strides than its parameter is read in the order of memory. Pass "
        "`gradient.contiguous()` to the kernel"
    ),
    moments_of_half="the moments of a {dtype} parameter are {got}, expected float32",
    moments_rounded=(
        "loading rounds the moments to bfloat16, because Optimizer.load_state_dict casts them to "
        "the parameter's dtype. Put those of `state_dict` back in"
    ),
)
CHANGED_AT = 2  # the step, counted from 0, before which a group's settings change
A, B, C = (
    Settings(0.05, (0.7, 0.9), 0.05),
    Settings(0.2, (0.5, 0.85), 0.2, 0.2, True),
    Settings(0.02, (0.6, 0.8), 0.1, 0.3, True),
)
COUPLED, DECOUPLED = (Settings(0.05, (0.7, 0.9), 0.05, 0.3, kind) for kind in (False, True))
SHAPES = [(40,), (5, 7), (3,), (70,), (2, 3, 4)]
MIXED = [torch.float32, torch.bfloat16, torch.float16, torch.bfloat16]
GROUPS = {  # each group's number of parameters and settings, early and late; dtypes; launches
    "a gradient that is None in step 2, other settings from step 3 on": (
        [(3, A, B), (2, C, C)],
        [torch.float32] * 5,
        2,
    ),
    "a group of three dtypes": ([(4, COUPLED, COUPLED)], MIXED, 3),
}
OURS, TORCH = "FusedAdam", "torch.optim.Adam"
LOADS = [  # the source of the state, the optimizer that loads it, settings, and dtype
    (OURS, OURS, COUPLED, torch.bfloat16),
    (TORCH, OURS, COUPLED, torch.bfloat16),
    (OURS, TORCH, COUPLED, torch.float32),
    (TORCH, OURS, COUPLED, torch.float32),
    (OURS, TORCH, DECOUPLED, torch.float32),
    (TORCH, OURS, DECOUPLED, torch.float32),
]
Make = Callable[..., Any]


@check_of(MISTAKES, ranks=1)
def fused_adam(check: Check) -> str:
    """Check groups, dtypes, missing gradients, closures, and states that go to torch and back."""
    make = check.function
    makers = {OURS: make, TORCH: torch.optim.Adam}
    with check.trial() as trial:
        made = trial.run(nn.Linear(2, 2).parameters(), seconds=_kernels.SECONDS)
        trial.require(lambda: has_defaults(made))
        for _, case in trial.cases(GROUPS):
            _steps(trial, make, *case)
        for _ in trial.cases({"a step with a closure": None}):
            _closure(trial, make)
        name = "the state of {0}, loaded into {1}, {3}, decoupled: {2.decoupled_weight_decay}"
        for _, (first, second, *case) in trial.cases(_kernels.named(name, LOADS)):
            _load(trial, makers[first], makers[second], *case)
    return (
        "one launch for a group and dtype, each parameter at its own step; states go to "
        "torch.optim.Adam and back, and stay float32"
    )


def has_defaults(made: Any) -> Finding | None:
    if not isinstance(made, torch.optim.Optimizer):
        return observed("FusedAdam is not a torch.optim.Optimizer. Make it a subclass")
    got, right = made.param_groups[0], asdict(Settings(1e-3, (0.9, 0.999), 1e-8))
    wrong = {name: got.get(name) for name in right if got.get(name) != right[name]}
    return unless(not wrong, f"the defaults {wrong} are not those of torch.optim.Adam")


def _steps(
    trial: Trial,
    make: Make,
    groups: list[tuple[int, Settings, Settings]],
    dtypes: list[torch.dtype],
    right_launches: int,
) -> None:
    """Compare steps with steps in float64: two, or four if settings change."""
    steps = CHANGED_AT if groups[0][1] == groups[0][2] else 4
    shapes = zip(SHAPES, dtypes, strict=False)
    start = [_kernels.numbers(trial, *shape).to(dtype) for shape, dtype in shapes]
    gradients = [[random_gradient(trial, t) for t in start] for _ in range(steps)]
    gradients[1][3] = None
    arena = Arena(device)
    p = [nn.Parameter(arena.place(f"parameter {i}", t)) for i, t in enumerate(start)]
    owner = [group for group in groups for _ in range(group[0])]
    counts: list[int] = []
    replaced: list[int] = []

    def train() -> Any:
        rest = iter(p)
        parts = [{"params": [next(rest) for _ in range(n)]} | asdict(of) for n, of, _ in groups]
        optimizer = make(parts)
        for step, row in enumerate(gradients):
            if step == CHANGED_AT:
                for part, (_, _, of) in zip(optimizer.param_groups, groups, strict=True):
                    part.update(asdict(of))
            given = [None if g is None else on_device(g) for g in row]
            for parameter, gradient in zip(p, given, strict=True):
                parameter.grad = gradient
            with launches() as launched:
                optimizer.step()
            counts.append(len(launched))
            replaced.extend(i for i, g in enumerate(given) if p[i].grad is not g)
        return optimizer

    call = _kernels.run(trial, arena, function=train)

    def settings(step: int, i: int) -> Settings:
        return owner[i][2 if step >= CHANGED_AT else 1]

    right = trained(start, gradients, settings)
    wrong = {
        "counted_without_gradient": trained(start, gradients, settings, count_missing=True),
        "gradient_strides": trained(start, [list(map(in_memory, g)) for g in gradients], settings),
    }
    trial.require(
        lambda: launched_as(counts, right_launches),
        lambda: has_states(call.result, p),
        lambda: _kernels.inside(call),
        lambda: _kernels.explained(partial(_adam.compare_parameters, p), right, wrong, MISTAKES),
        lambda: unchanged("a gradient", [q.grad for q in p], gradients[-1]),
        lambda: same_gradients(replaced),
    )


def random_gradient(trial: Trial, parameter: Tensor) -> Tensor | None:
    """Draw a gradient. If it is a matrix, it is transposed in memory."""
    gradient = _kernels.numbers(trial, *parameter.shape).to(parameter.dtype)
    return gradient.t().contiguous().t() if gradient.dim() == 2 else gradient


def on_device(gradient: Tensor) -> Tensor:
    """Return a copy with the same strides."""
    options = {"dtype": gradient.dtype, "device": device}
    return torch.empty_strided(gradient.shape, gradient.stride(), **options).copy_(gradient)


def in_memory(gradient: Tensor | None) -> Tensor | None:
    """Return the numbers of a gradient in the order of memory."""
    if gradient is None:
        return None
    return gradient.as_strided((gradient.numel(),), (1,)).view(gradient.shape)


def launched_as(counts: list[int], right: int) -> Finding | None:
    wrong = next((count for count in counts if count != right), None)
    text = f"a step makes {wrong} launches, expected {right}: one for each group and dtype"
    return unless(wrong is None, text)


def same_gradients(replaced: list[int]) -> Finding | None:
    numbers = set(replaced)
    return unless(not numbers, f"`grad` of parameters {numbers} is another tensor after the step")


def has_states(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> Finding | None:
    """Require tensors with torch's names: the step in one float32, and moments in float32."""
    for i, p in enumerate(parameters):
        state = optimizer.state.get(p, {})
        for name in ("step", "exp_avg", "exp_avg_sq"):
            value, called = state.get(name), f"state[parameter {i}][{name!r}]"
            if not isinstance(value, Tensor):
                return observed(f"{called} is {a_type_of(value)}, expected a tensor")
            if name == "step" and (value.dtype != torch.float32 or value.shape != ()):
                return observed(f"{called} is {value!r}, expected a float32 tensor of shape ()")
            if value.dtype != torch.float32:
                return MISTAKES.moments_of_half(dtype=str(p.dtype)[6:], got=str(value.dtype)[6:])
            if name != "step" and value.shape != p.shape:
                return observed(f"{called} has shape {tuple(value.shape)}")
    return None


def _closure(trial: Trial, make: Make) -> None:
    weights = [nn.Parameter(torch.ones(5, device=device)) for _ in range(2)]  # a group each
    enabled: list[bool] = []

    def closure() -> Tensor:
        enabled.append(torch.is_grad_enabled())
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return weights[0].detach().sum() * 3

    def step() -> Any:
        return make([{"params": [weight]} for weight in weights], lr=0.5).step(closure)

    loss = trial.run_function(step, seconds=_kernels.SECONDS)
    trial.require(lambda: used_closure(enabled, weights, loss))


def used_closure(enabled: list[bool], weights: list[nn.Parameter], loss: Any) -> Finding | None:
    if len(enabled) != 1:
        return observed(f"step() calls the closure {len(enabled)} times, expected once")
    if not enabled[0]:
        return observed(
            "gradients are disabled while the closure runs. Call it under `torch.enable_grad()`"
        )
    if any((weight == 1).all() for weight in weights):
        return observed(
            "step(closure) leaves parameters unchanged. The closure computes the gradients: call "
            "it before you look at them"
        )
    is_loss = isinstance(loss, Tensor) and float(loss) == 15.0
    return unless(is_loss, f"step(closure) returns {loss}, expected the closure's loss, 15.0")


def _load(trial: Trial, first: Make, second: Make, of: Settings, dtype: torch.dtype) -> None:
    """Require that `second` continues like `first` after it has loaded its state.

    torch's Adam has moments in bfloat16 for a bfloat16 parameter, so only states are compared then.
    """
    p = [nn.Parameter(_kernels.numbers(trial, n).to(device, dtype)) for n in (12, 20, 7)]
    continues = dtype == torch.float32
    q: list[nn.Parameter] = []
    states: list[tuple[dict, dict]] = []

    def train() -> None:
        before = first([{"params": p[:2]}, {"params": p[2:], "lr": 0.02}], **asdict(of))
        take_steps(before, p, range(2))
        q.extend(nn.Parameter(parameter.detach().clone()) for parameter in p)
        after = second([{"params": q[:2]}, {"params": q[2:]}], lr=9.0)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        pairs = [(before.state[one], after.state[other]) for one, other in zip(p, q, strict=True)]
        states.extend(copy.deepcopy(pairs))
        for optimizer, parameters in ((before, p), (after, q)) if continues else ():
            take_steps(optimizer, parameters, range(2, 4))

    call = _kernels.run(trial, Arena(device), function=train)
    trial.require(
        lambda: _kernels.inside(call),
        lambda: same_states(states),
        lambda: _adam.compare_parameters(q, p) if continues else None,
    )


def take_steps(optimizer: Any, parameters: list[nn.Parameter], steps: range) -> None:
    """Take steps. In the first two, the second parameter has no gradient."""
    for step in steps:
        for parameter in parameters:
            parameter.grad = (parameter.detach() * (step + 1)).cos()
        if step < 2:
            parameters[1].grad = None
        optimizer.step()


def same_states(states: list[tuple[dict, dict]]) -> Finding | None:
    loaded: dict[str, tuple[Tensor, Tensor]] = {}
    for i, (old, new) in enumerate(states):
        if "exp_avg" not in old and "exp_avg" in new and new["exp_avg"].any():
            return observed(f"parameter {i} never had a gradient, but has moments after loading")
        for name in ("exp_avg", "exp_avg_sq", "step") if "exp_avg" in old else ():
            if name not in new:
                return observed(f"after loading, the state of parameter {i} has no {name!r}")
            loaded[f"after loading, {name!r} of parameter {i}"] = old[name], new[name]
    are_rounded = all(same(new, old.bfloat16()) for old, new in loaded.values())
    for name, (old, new) in loaded.items():
        if found := equal(new.double(), old.double(), name):
            return MISTAKES.moments_rounded() if are_rounded else found
    half = [new.dtype for _, new in loaded.values() if new.dtype != torch.float32]
    return MISTAKES.moments_of_half(dtype="bfloat16", got=str(half[0])[6:]) if half else None
