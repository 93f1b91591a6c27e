"""Exercise `parallel_attention`."""

from torch import nn

from parlab import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import random, refuses, uses_classes

MISTAKES = Mistakes(
    **layers.texts("fused_as_one", "not_summed", "sends_more"),
)


@check_of(MISTAKES)
def parallel_attention(check: Check) -> str:
    """Check plain and grouped attention, and that uneven heads are refused."""
    for trial in check.trials():
        n = trial.size
        sizes = [(2 * n, 2 * n), (n, n), (4 * n, 2 * n), (3 * n, n)]
        cases = {
            f"{heads} heads, {keys} of keys and values": (heads, keys) for heads, keys in sizes
        }
        for _, (heads, keys) in trial.cases(cases):
            _case(trial, heads, keys)
        for heads, keys in [(n + 1, n + 1), (2 * n, 1), (n * (n + 1), n + 1)]:
            _uneven(trial, heads, keys)
        module = models.Attention(models.GPTConfig(hidden_size=2 * n, heads=n))
        uses_classes(trial, check.function, module, ["column", "row"])
    return (
        "each rank has whole heads, and the keys that they read; output and gradients are the "
        f"serial ones, with one all-reduce each way, on 1 to {check.world_size} ranks"
    )


def _attention(heads: int, keys: int, head_size: int) -> models.Attention:
    return models.Attention(
        models.GPTConfig(hidden_size=heads * head_size, heads=heads, key_value_heads=keys)
    )


def _case(trial: Trial, heads: int, keys: int) -> None:
    rows = layers.Share(0, (2 * heads, 2 * keys, 2 * keys))
    right = {"heads": heads // trial.size, "key_value_heads": keys // trial.size, "head_size": 2}

    def counts(attention: nn.Module) -> Finding | None:
        for name, value in right.items():
            if (got := getattr(attention, name)) != value:
                return observed(
                    f"`attention.{name}` is {got}, expected {value} on this rank: the forward pass "
                    "divides the outputs of qkv by it"
                )
        return None

    case = layers.Case(
        MISTAKES,
        layers.seeded(trial, lambda: _attention(heads, keys, 2)),
        lambda attention: trial.check.function(attention, trial.group),
        random(trial.draw, 2, 3, 2 * heads),
        {"qkv.weight": rows, "qkv.bias": rows, "out.weight": layers.Share(1)},
        forward=1,
        backward=1,
        in_place=True,
        form=counts,
    )
    layers.compare(trial, case)


def _uneven(trial: Trial, heads: int, keys: int) -> None:
    """Require that uneven heads are refused, and that the attention is unchanged afterward."""
    n = trial.size
    if heads % n == 0 and keys % n == 0:
        return
    attention = _attention(heads, keys, n)  # the ranks divide all sizes, but not the heads
    before = {**vars(attention), **attention._modules}
    refuses(
        trial,
        lambda: trial.check.function(attention, trial.group),
        f"{heads} heads with {keys} heads of keys and values",
        [heads, keys],
    )
    now = {**vars(attention), **attention._modules}
    changed = [f"`attention.{name}`" for name in before if now.get(name) is not before[name]]
    text = f"it changes {', '.join(changed)} before it refuses: check both numbers of heads first"
    trial.require(lambda: observed(text) if changed else None)
