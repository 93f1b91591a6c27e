"""Answers to `adafactor_step`."""

from parlab_staff.answers import Answers

answers = Answers("adafactor_step")

COUNT = 'step = state["step"] = state.get("step", 0) + 1'
ALPHA = "alpha = max(eps[1], rms(parameter)) * min(lr, step**-0.5)"
SQUARE = "square = gradient.square().add_(eps[0])"
VECTOR = "if gradient.dim() == 1:"
UPDATE_VECTOR = "update = gradient * moment.rsqrt()"
UPDATE = "update = gradient * (rows / rows.mean()).rsqrt()[:, None]"
COLUMNS = "update *= columns.rsqrt()"
MOVE = "parameter.sub_(update, alpha=alpha / max(1.0, rms(update) / clip))"
TENSOR = """state.setdefault("step", gradient.new_zeros(()))
    state["step"] += 1
    step = state["step"].item()"""
PRODUCT = "update = gradient * (rows[:, None] * columns / rows.mean()).rsqrt()"

for mistake, name, *edits in (
    ("absolute_step", "absolute_step", (ALPHA, "alpha = min(lr, step**-0.5)")),
    ("constant_rate", "constant_rate", (ALPHA, "alpha = max(eps[1], rms(parameter)) * lr")),
    ("never_clipped", "not_clipped", (MOVE, "parameter.sub_(update, alpha=alpha)")),
    (
        None,
        "always_clipped",
        (MOVE, MOVE.replace("max(1.0, rms(update) / clip)", "(rms(update) / clip)")),
    ),
    ("norm_for_rms", "norm", (MOVE, MOVE.replace("rms(update)", "update.norm().item()"))),
    (
        "zero_moment",
        "as_in_adam",
        (SQUARE, "square = gradient.square()"),
        (UPDATE_VECTOR, "update = gradient / (moment.sqrt() + eps[0])"),
        (UPDATE, "update = gradient / ((rows[:, None] * columns / rows.mean()).sqrt() + eps[0])"),
        (COLUMNS, ""),
    ),
    ("full_moment", "full_moment", (VECTOR, "if True:")),
    ("zero_moment", "product_first", (UPDATE, PRODUCT), (COLUMNS, "")),
    (
        None,
        "nan_is_zero",
        (UPDATE, PRODUCT + "\n        update.nan_to_num_(0.0, 0.0, 0.0)"),
        (COLUMNS, ""),
    ),
    (None, "own_clip", (MOVE, MOVE.replace("/ clip", "/ 1.0"))),
    (None, "not_in_place", (MOVE, MOVE.replace("parameter.sub_", "parameter = parameter.sub"))),
    (None, "count_forgotten", (COUNT, "step = len(state) + 1")),
    ("argument_changed", "gradient_scaled", (SQUARE, SQUARE + "\n    gradient *= 1.0001")),
    ("returns_something", "returned", (MOVE, "return " + MOVE)),
):
    answers.edit(mistake, name, *edits)

answers.right_edit(
    "product_in_float64",
    (UPDATE, PRODUCT.replace("rows[:, None]", "rows[:, None].double()") + ".float()"),
    (COLUMNS, ""),
)
answers.right_edit("count_in_a_tensor", (COUNT, TENSOR))

MEANS: dict[int, list] = {}


@answers.wrong(None)
def moments_by_shape(parameter, gradient, state, lr=1e-2, eps=(1e-30, 1e-3), clip=1.0):
    """Keeps the means under the parameter's shape, so that two parameters share them."""
    shared = MEANS.setdefault(parameter.shape, {})
    if "step" not in state:
        shared.clear()
    shared["step"] = state.get("step", 0)
    answers.reference()(parameter, gradient, shared, lr, eps, clip)
    state["step"] = shared["step"]


@answers.right
def with_sums(parameter, gradient, state, lr=1e-2, eps=(1e-30, 1e-3), clip=1.0):
    """Sums instead of means, as in the paper, and tensors instead of Python's numbers."""
    state["step"] = t = state.get("step", 0) + 1
    beta = 1 - t**-0.8
    squares = gradient * gradient + eps[0]
    if gradient.ndim == 2:
        r = squares.sum(1, keepdim=True) * (1 - beta) + beta * state.get("R", 0)
        c = squares.sum(0, keepdim=True) * (1 - beta) + beta * state.get("C", 0)
        state["R"], state["C"] = r, c
        u = gradient / (r / r.sum()).sqrt() / c.sqrt()
    else:
        state["V"] = squares * (1 - beta) + beta * state.get("V", 0)
        u = gradient / state["V"].sqrt()
    u = u / (u.square().mean().sqrt() / clip).clamp(min=1)
    size = parameter.square().mean().sqrt().clamp(min=eps[1])
    parameter -= size * min(lr, 1 / t**0.5) * u
