"""Exercise `fused_adam`."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.triton.adams import ABSOLUTE, ROUNDED, Settings, State, stepped
from parlab.checks.triton.watched import SECONDS, Run, inside, is_near, near, numbers, run, warm
from parlab.checks.untouched import unchanged
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import launches
from parlab.rank import device

MISTAKES = Mistakes(
    not_an_optimizer="it is no torch.optim.Optimizer: a subclass has its groups, states and more",
    wrong_defaults="by default `{name}` is {got}, where torch's Adam has {right}",
    launch_per_tensor="{got} launches in a step of {tensors} tensors in {groups} groups",
    launch_per_group=(
        "{got} launch{es} in a step where a group has parameters of {right} dtypes: one for each"
    ),
    moved_without_gradient="a parameter without a gradient has moved: None is not a gradient of 0",
    counted_without_gradient=(
        "a parameter that had no gradient in step 2 is corrected as if it had: each has a step "
        "count of its own"
    ),
    settings_kept="the settings have changed between steps, and the old ones are used",
    first_group_for_all="all groups are updated with the settings of the first",
    gradient_strides=(
        "a gradient whose numbers lie in memory in another order is taken in the order of memory: "
        "`contiguous()` puts them in the parameter's"
    ),
    moments_of_half="the moments of a {dtype} parameter are {got}: float32 is asked for",
    moments_rounded=(
        "loading has rounded the moments to {dtype}: Optimizer.load_state_dict casts them to the "
        "parameter's dtype, so put those of the dict back in"
    ),
    state_of_another=(
        "parameter {number} has never had a gradient, and after loading it has moments: "
        "`state_dict['state']` has an entry only for parameters that had one, under their numbers"
    ),
    gradient_replaced=(
        "`grad` of parameter {number} is another tensor after the step: it stays as it is, and "
        "what is contiguous is a copy of it"
    ),
    closure_not_called="the closure is called {got} times, once is right",
    closure_without_gradients=(
        "the closure runs without gradients: `step` is under no_grad, the closure is not"
    ),
    closure_after_update=(
        "step(closure) leaves parameters as they were: the closure computes the gradients, so it "
        "is called before anything is updated"
    ),
    loss_lost="step(closure) returns {got}, where the closure's loss is right",
)

STEPS, MISSING = 4, 1  # in step number 2 a parameter has no gradient


@check_of(MISTAKES)
def fused_adam(check: Check) -> str:
    """Check groups, dtypes, missing gradients, closures, and states that go to torch and back."""
    warm()
    with check.trial() as trial:
        trial.situation = "as it is made, from model.parameters()"
        made = trial.run_function(
            lambda: check.function(nn.Linear(2, 2).parameters()), seconds=SECONDS
        )
        trial.require(lambda: optimizer_of(made))
        _groups(trial, check.function)
        _dtypes(trial, check.function)
        _closure(trial, check.function)
        for first in (check.function, torch.optim.Adam):
            _loaded(trial, first, check.function)
        for decoupled in (False, True):
            _to_torch(trial, check.function, decoupled)
            _from_torch(trial, check.function, decoupled)
    return (
        "one launch for a group and dtype, each parameter at its own step; states go to "
        "torch.optim.Adam and back, and stay float32"
    )


def optimizer_of(made: Any) -> Finding | None:
    if not isinstance(made, torch.optim.Optimizer):
        return MISTAKES.not_an_optimizer()
    usual = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}
    for name, right in (usual | {"decoupled_weight_decay": False}).items():
        got = made.param_groups[0].get(name)
        if got != right:
            return MISTAKES.wrong_defaults(name=name, got=got, right=right)
    return None


def _settings(group: dict) -> Settings:
    names = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay")
    return Settings(*(group[name] for name in names))


def simulated(
    start: list[Tensor],
    gradients: list[list[Tensor | None]],
    settings: Callable[[int, int], Settings],
    *,
    count_missing: bool = False,
) -> list[Tensor]:
    """Parameters after the steps, rounded to their dtypes; `settings(step, tensor)`."""
    found = []
    for number, first in enumerate(start):
        p, count = first, 0
        m = v = torch.zeros(first.shape, dtype=torch.float64)
        for step, row in enumerate(gradients):
            count += count_missing or row[number] is not None
            if row[number] is not None:
                state = State(p, row[number], m, v, count)
                moved, m, v = stepped(state, settings(step, number))
                p = moved.to(first.dtype)
        found.append(p)
    return found


def _groups(trial: Trial, make: Callable) -> None:
    """Two groups; a gradient of other strides; a parameter that lacks one in a step."""
    draw = trial.draw
    trial.situation = "two groups, a gradient that is None in step 2, other settings from step 3 on"
    shapes = [(40,), (5, 7), (3,), (draw.randrange(50, 90),), (2, 3, 4)]
    start = [numbers(trial, *shape) for shape in shapes]
    gradients = [[numbers(trial, *shape) for shape in shapes] for _ in range(STEPS)]
    for step in range(STEPS):
        gradients[step][1] = gradients[step][1].t().contiguous().t()
    gradients[MISSING][3] = None
    arena = Arena(device)
    p = [nn.Parameter(arena.place(f"parameter {i}", t)) for i, t in enumerate(start)]
    chosen = [
        {"lr": 0.05, "betas": (0.7, 0.9), "eps": 0.05, "weight_decay": 0.0},
        {"lr": 0.02, "betas": (0.6, 0.8), "eps": 0.1, "weight_decay": 0.3},
    ]
    chosen[1]["decoupled_weight_decay"] = True
    late = {"lr": 0.2, "betas": (0.5, 0.85), "eps": 0.2, "weight_decay": 0.2}
    late["decoupled_weight_decay"] = True
    per_step: list[int] = []
    kept: list[Tensor] = []
    given: list[Tensor | None] = []

    def train() -> Any:
        groups = [{"params": p[:3]} | chosen[0], {"params": p[3:]} | chosen[1]]
        optimizer = make(groups)
        for step in range(STEPS):
            if step == 2:
                optimizer.param_groups[0].update(late)
            for parameter, gradient in zip(p, gradients[step], strict=True):
                parameter.grad = None if gradient is None else strided(gradient)
            given[:] = [parameter.grad for parameter in p]
            if step == MISSING:
                kept.append(p[3].detach().clone())
            with launches() as made:
                optimizer.step()
            per_step.append(len(made))
            if step == MISSING:
                kept.append(p[3].detach().clone())
        return optimizer

    done = run(trial, arena, function=train)

    def rate(step: int, tensor: int, new: dict = late, first: bool = False) -> Settings:
        group = chosen[0] if tensor < 3 or first else chosen[1]
        changed = new if step >= 2 and (tensor < 3 or first) else {}
        return _settings({"decoupled_weight_decay": False} | group | changed)

    def wrong() -> Iterator[tuple[list[Tensor], Finding]]:
        yield (
            simulated(start, gradients, rate, count_missing=True),
            MISTAKES.counted_without_gradient(),
        )
        for new in ({}, late | {"lr": chosen[0]["lr"]}):
            old = simulated(start, gradients, lambda s, t, new=new: rate(s, t, new))
            yield old, MISTAKES.settings_kept()
        first = simulated(start, gradients, lambda s, t: rate(s, t, first=True))
        yield first, MISTAKES.first_group_for_all()
        memory = [
            [None if g is None else g.t().flatten().view(g.shape) if i == 1 else g
             for i, g in enumerate(row)]
            for row in gradients
        ]  # fmt: skip
        yield simulated(start, memory, rate), MISTAKES.gradient_strides()

    right = simulated(start, gradients, rate)
    trial.require(
        lambda: inside(done),
        lambda: launched(per_step, 2, len(shapes)),
        lambda: None if torch.equal(*kept) else MISTAKES.moved_without_gradient(),
        lambda: values(p, right, wrong()),
        lambda: unchanged("a gradient", [q.grad for q in p], [g for g in gradients[-1]]),
        lambda: gradients_kept(p, given),
        lambda: states(done.result, p),
    )


def gradients_kept(p: list[nn.Parameter], given: list[Tensor | None]) -> Finding | None:
    for number, (parameter, gradient) in enumerate(zip(p, given, strict=True)):
        if parameter.grad is not None and parameter.grad is not gradient:
            return MISTAKES.gradient_replaced(number=number)
    return None


def strided(gradient: Tensor) -> Tensor:
    """On the device, with the same strides."""
    moved = torch.empty_strided(gradient.shape, gradient.stride(), device=device)
    return moved.copy_(gradient)


def launched(per_step: list[int], groups: int, tensors: int) -> Finding | None:
    for step, got in enumerate(per_step):
        if got >= tensors - (step == MISSING):
            return MISTAKES.launch_per_tensor(got=got, tensors=tensors, groups=groups)
        if got != groups:
            return evidence(f"step {step + 1} makes {got} launches, for {groups} groups")
    return None


def values(
    got: list[nn.Parameter], right: list[Tensor], wrong: Iterator[tuple[list[Tensor], Finding]]
) -> Finding | None:
    def alike(other: list[Tensor]) -> bool:
        # A step's rounding may go the other way, and a 16-bit number be a gap off.
        return all(
            is_near(a, b, 3 * ROUNDED[a.dtype], 3 * ABSOLUTE)
            for a, b in zip(got, other, strict=True)
        )

    if alike(right):
        return None
    for other, finding in wrong:
        if alike(other):
            return finding
    for number, (one, other) in enumerate(zip(got, right, strict=True)):
        name = f"parameter {number}"
        if found := near(one, other, name, 3 * ROUNDED[one.dtype], 3 * ABSOLUTE):
            return found
    return None


def states(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> Finding | None:
    for number, p in enumerate(parameters):
        state = optimizer.state.get(p, {})
        for name in ("step", "exp_avg", "exp_avg_sq"):
            if not isinstance(state.get(name), Tensor):
                return evidence(
                    f"state[parameter {number}][{name!r}] is {type(state.get(name)).__name__}: a "
                    "tensor is asked for, as torch has it"
                )
        if state["step"].dtype != torch.float32 or state["step"].numel() != 1:
            return evidence(
                f"state[parameter {number}]['step'] is {state['step']!r}, of "
                f"{state['step'].dtype}: a tensor of one float32 is asked for, as torch has it"
            )
        for name in ("exp_avg", "exp_avg_sq"):
            if state[name].dtype != torch.float32:
                dtype, got = str(p.dtype)[6:], str(state[name].dtype)[6:]
                return MISTAKES.moments_of_half(dtype=dtype, got=got)
            if state[name].shape != p.shape:
                return evidence(f"{name} of parameter {number} has shape {state[name].shape}")
    return None


def _dtypes(trial: Trial, make: Callable) -> None:
    trial.situation = "a group of float32, bfloat16 and float16 parameters"
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.bfloat16]
    start = [numbers(trial, 30 + i).to(dtype) for i, dtype in enumerate(dtypes)]
    gradients = [[numbers(trial, *t.shape).to(t.dtype) for t in start] for _ in range(2)]
    arena = Arena(device)
    p = [nn.Parameter(arena.place(f"parameter {i}", t)) for i, t in enumerate(start)]
    settings = {"lr": 0.05, "betas": (0.7, 0.9), "eps": 0.05, "weight_decay": 0.3}
    per_step: list[int] = []

    def train() -> Any:
        optimizer = make(p, **settings)
        for row in gradients:
            for parameter, gradient in zip(p, row, strict=True):
                parameter.grad = gradient.to(device)
            with launches() as made:
                optimizer.step()
            per_step.append(len(made))
        return optimizer

    done = run(trial, arena, function=train)
    of = _settings(settings | {"decoupled_weight_decay": False})
    right = simulated(start, gradients, lambda step, tensor: of)
    trial.require(
        lambda: (
            MISTAKES.launch_per_group(got=per_step[0], es="es" if per_step[0] != 1 else "", right=3)
            if set(per_step) != {3}
            else None
        ),
        lambda: states(done.result, p),
        lambda: inside(done),
        lambda: values(p, right, iter(())),
    )


def _closure(trial: Trial, make: Callable) -> None:
    trial.situation = "a step with a closure, for two groups without gradients before it"
    weights = [nn.Parameter(torch.ones(5, device=device)) for _ in range(2)]
    calls: list[bool] = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        total = weights[0].detach().sum() * 3
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return total

    def step() -> Any:
        return make([{"params": [weight]} for weight in weights], lr=0.5).step(closure)

    loss = trial.run_function(step, seconds=SECONDS)
    trial.require(
        lambda: None if len(calls) == 1 else MISTAKES.closure_not_called(got=len(calls)),
        lambda: None if all(calls) else MISTAKES.closure_without_gradients(),
        lambda: MISTAKES.closure_after_update() if any((w == 1).all() for w in weights) else None,
        lambda: (
            None
            if isinstance(loss, Tensor) and float(loss) == 15.0
            else MISTAKES.loss_lost(got=loss)
        ),
    )


def _model(trial: Trial, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(numbers(trial, n).to(device, dtype)) for n in (12, 20, 7)]


def _train(optimizer: Any, parameters: list[nn.Parameter], steps: range) -> None:
    """Steps of which the first two leave the second parameter without a gradient."""
    for step in steps:
        for parameter in parameters:
            parameter.grad = (parameter.detach() * (step + 1)).cos()
        if step < 2:
            parameters[1].grad = None
        optimizer.step()


def _in_two_groups(parameters: list[nn.Parameter]) -> list[dict]:
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}]


def _with_settings(decoupled: bool) -> dict:
    return {
        "lr": 0.05,
        "betas": (0.7, 0.9),
        "eps": 0.05,
        "weight_decay": 0.3,
        "decoupled_weight_decay": decoupled,
    }


def _to_torch(trial: Trial, make: Callable, decoupled: bool) -> None:
    trial.situation = "two steps, its state loaded into torch.optim.Adam, two more on both"
    _handed_over(trial, make, torch.optim.Adam, decoupled)


def _from_torch(trial: Trial, make: Callable, decoupled: bool) -> None:
    trial.situation = "two steps of torch.optim.Adam, its state loaded, two more on both"
    _handed_over(trial, torch.optim.Adam, make, decoupled)


def _handed_over(trial: Trial, first: Callable, second: Callable, decoupled: bool) -> None:
    mine = _model(trial)

    def train() -> tuple[list, list]:
        before = first(_in_two_groups(mine), **_with_settings(decoupled))
        _train(before, mine, range(2))
        other = [nn.Parameter(p.detach().clone()) for p in mine]
        after = second(_in_two_groups(other), lr=9.0)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        _train(before, mine, range(2, 4))
        _train(after, other, range(2, 4))
        return mine, other

    done: Run = run(trial, Arena(device), function=train)
    trial.require(
        lambda: inside(done),
        lambda: values(done.result[1], [p.detach().cpu() for p in done.result[0]], iter(())),
    )


def _loaded(trial: Trial, first: Callable, second: Callable) -> None:
    whose = "its" if first is second else "torch.optim.Adam's"
    trial.situation = f"{whose} state loaded into a new one, for bfloat16 parameters"
    mine = _model(trial, torch.bfloat16)

    def train() -> tuple[Any, Any]:
        before = first(mine, **_with_settings(False))
        _train(before, mine, range(2))
        other = [nn.Parameter(p.detach().clone()) for p in mine]
        after = second(other, lr=9.0)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        return [before.state[p] for p in mine], [after.state[p] for p in other]

    done: Run = run(trial, Arena(device), function=train)
    trial.require(lambda: inside(done), lambda: same_states(done.result))


def same_states(found: tuple[list[dict], list[dict]]) -> Finding | None:
    for number, (old, new) in enumerate(zip(*found, strict=True)):
        if "exp_avg" not in old:
            if "exp_avg" in new and new["exp_avg"].any():
                return MISTAKES.state_of_another(number=number)
            continue
        for name in ("exp_avg", "exp_avg_sq", "step"):
            if name not in new:
                return evidence(f"after loading, a state has no {name!r}")
            one, other = old[name].double().cpu(), new[name].double().cpu()
            if torch.equal(one, other):
                if new[name].dtype == torch.float32:
                    continue
                return MISTAKES.moments_of_half(dtype="bfloat16", got=str(new[name].dtype)[6:])
            if torch.equal(one.bfloat16().double(), other):
                return MISTAKES.moments_rounded(dtype="bfloat16")
            return evidence(f"after loading, {name!r} is another: {other} instead of {one}")
    return None
