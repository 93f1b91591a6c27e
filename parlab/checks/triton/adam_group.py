"""Exercise `adam_group`."""

from dataclasses import astuple, replace

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.triton import _adam, _kernels
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    kept_tables=(
        "this call uses tensors or steps of an earlier call. Make tables of addresses, sizes, and "
        "corrections from the arguments of each call"
    ),
)
UNALIGNED = "tensors whose addresses are no multiples of 16 bytes"
GROUPS = {  # shapes, dtype, and weight decay
    "one tensor": ([(64,)], torch.float32, "no"),
    "very different sizes": ([(5,), (6000,), (1,), (33, 17)], torch.float32, "coupled"),
    "as many tensors, other sizes": ([(700,), (3,), (41, 30), (9,)], torch.float32, "coupled"),
    "twelve tensors": ([(7 * n + 2,) for n in range(12)], torch.float32, "decoupled"),
    UNALIGNED: ([(37,), (1100,), (6,)], torch.float32, "coupled"),
    "bfloat16": ([(3, 7), (1025,), (40,)], torch.bfloat16, "decoupled"),
    "float16": ([(2, 3, 5), (700,)], torch.float16, "coupled"),
    "more elements than one block can have": ([(70_000,), (3,)], torch.float32, "no"),
}


@check_of(MISTAKES, ranks=1)
def adam_group(check: Check) -> str:
    """Check groups of tensors of very different sizes, in one launch each, and later calls."""
    with check.trial() as trial:
        earlier: list[_adam.State] = []
        for name, (shapes, dtype, decay) in trial.cases(GROUPS):
            of = _adam.random_settings(trial.draw, decay)
            steps = [trial.draw.randrange(1, 9) for _ in shapes]
            steps[-1] = steps[0] % 8 + 1
            arena = Arena(device)
            now = [
                _adam.placed(
                    arena,
                    _adam.random_state(trial, shape, dtype, step),
                    f"s[{i}]",
                    shift=(i + 1) * (name == UNALIGNED),
                )
                for i, (shape, step) in enumerate(zip(shapes, steps, strict=True))
            ]
            _one_call(trial, arena, now, of, steps, earlier)
            trial.add("the same tensors again, at later steps")
            later = [replace(state, step=state.step + 3 + i) for i, state in enumerate(now)]
            _one_call(trial, arena, later, of, steps, earlier)
            earlier += now
    return "one launch for all tensors where they are, each at its own step, three dtypes"


def _one_call(
    trial: Trial,
    arena: Arena,
    now: list[_adam.State],
    of: _adam.Settings,
    first_steps: list[int],
    earlier: list[_adam.State],
) -> None:
    before, others = [s.copy() for s in now], [s.copy() for s in earlier]
    p, g, m, v = ([getattr(s, name) for s in now] for name in "pgmv")
    call = _kernels.run(trial, arena, p, g, m, v, [s.step for s in now], *astuple(of))
    at_first = [replace(s, step=step) for s, step in zip(before, first_steps, strict=True)]

    def compare(states: list[_adam.State]) -> Finding | None:
        return _kernels.first(
            _adam.compare_step(one.changing, _adam.stepped(other, of), f"s[{i}]")
            for i, (one, other) in enumerate(zip(now, states, strict=True))
        )

    trial.require(
        lambda: _kernels.one_launch_inside(call, "gradients"),
        lambda: keeps_earlier(earlier, others),
        lambda: _kernels.explained(compare, before, {"kept_tables": at_first}, MISTAKES),
        lambda: _adam.moved_once(call, *now),
    )


def keeps_earlier(now: list[_adam.State], before: list[_adam.State]) -> Finding | None:
    """Require that tensors of earlier calls are unchanged."""
    if unchanged("", [s.changing for s in now], [s.changing for s in before]):
        return MISTAKES.kept_tables()
    return None
