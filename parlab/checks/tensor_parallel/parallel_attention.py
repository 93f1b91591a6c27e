"""Exercise `parallel_attention`."""

from collections.abc import Callable

from torch import Tensor, nn

from parlab import models
from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import layers, requirements
from parlab.checks.tensor_parallel.layers import Passed, Right, Share, passes, random, seeded
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    fused_as_one=(
        "qkv is cut as one matrix: rank {rank} has outputs {first} to {last} of all, where its "
        "part of the queries, of the keys and of the values are right. `attention.sections` says "
        "where they are"
    ),
    wrong_count=(
        "`attention.{name}` is {got} where {right} is right on this rank: its forward pass splits "
        "the outputs of qkv by that"
    ),
    changed_before_refusing=(
        "it refuses, but `attention` has changed before that: look at the number of heads first"
    ),
    **requirements.texts(
        "no_reduce_backward",
        "reduced_again",
        "not_summed",
        "whole_weights",
        "not_refused",
        "sends_more",
    ),
)


@check_of(MISTAKES)
def parallel_attention(check: Check) -> str:
    """Check plain and grouped attention, and what is refused."""
    for trial in check.trials():
        n = trial.size
        for heads, key_value_heads in [(2 * n, None), (n, None), (4 * n, 2 * n), (3 * n, n)]:
            trial.situation = f"{n} ranks, {heads} heads, {key_value_heads or heads} of keys"
            _one(trial, models.GPTConfig(
                hidden_size=heads * 2, heads=heads, key_value_heads=key_value_heads
            ))  # fmt: skip
        trial.situation = f"{n} ranks"
        # A hidden size that divides, heads that do not: no shape would tell.
        for heads, key_value_heads in [(n + 1, None), (2 * n, 1), (2 * n, 2 if n > 2 else 1)]:
            _refused(trial, heads, key_value_heads)
        config = models.GPTConfig(hidden_size=2 * n, heads=n)
        requirements.uses_classes(trial, models.Attention(config))
    return (
        "each rank has whole heads, and the keys that they read; output and gradients are the "
        f"serial ones, with one all-reduce each way, on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, config: models.GPTConfig) -> None:
    seed, hidden = trial.draw.getrandbits(32), config.hidden_size
    x = random(trial.draw, 2, 3, hidden)
    weights = random(trial.draw, 2, 3, hidden)

    def serial() -> nn.Module:
        return seeded(seed, lambda: models.Attention(config))

    whole = serial()
    sections = tuple(whole.sections)
    right = layers.serially(whole, x, layers.weighing(weights))
    shares = {
        "qkv.weight": Share(0, sections),
        "qkv.bias": Share(0, sections),
        "out.weight": Share(1),
        "out.bias": None,
    }

    attention = serial()
    cut = trial.run(attention, trial.group)
    trial.require(lambda: counts(cut, attention, config, trial.size))
    passed = trial.run_function(
        _passes, trial, serial, x, layers.weighing(weights), seconds=layers.SECONDS
    )
    everyone = trial.gather(passed)
    trial.require(
        lambda: instead(passed, right, sections, trial),
        lambda: requirements.holds_its_share(passed, right, shares, trial),
        lambda: requirements.untouched(passed),
        lambda: output_is(passed, right, everyone, trial),
        lambda: requirements.gradient_is(
            passed.input_gradient, right.input_gradient, [p.input_gradient for p in everyone], "x"
        ),
        lambda: requirements.gradients_are(passed, right, shares, everyone, trial),
        lambda: requirements.sends(passed.forward, x.nbytes, trial.size, "forward"),
        lambda: requirements.sends(passed.backward, x.nbytes, trial.size, "backward"),
    )


def counts(
    cut: object, attention: nn.Module, config: models.GPTConfig, ranks: int
) -> Finding | None:
    """Whether the attention's numbers are this rank's, where it has been changed in place."""
    whole = sum(models.Attention(config).sections)
    # What else is wrong then is told of the passes.
    if cut is not attention or len(attention.qkv.weight) == whole > whole // ranks:
        return None
    key_value_heads = config.key_value_heads or config.heads
    for name, right in (
        ("heads", config.heads // ranks),
        ("key_value_heads", key_value_heads // ranks),
        ("head_size", config.hidden_size // config.heads),
    ):
        if (got := getattr(attention, name)) != right:
            return MISTAKES.wrong_count(name=name, got=got, right=right)
    return None


def _passes(
    trial: Trial, serial: Callable[[], nn.Module], x: Tensor, weigh: Callable[[Tensor], Tensor]
) -> Passed:
    return passes(
        trial,
        serial,
        lambda attention: trial.check.function(attention, trial.group),
        x,
        weigh,
        in_place=True,
    )


def instead(
    passed: Passed, right: Right, sections: tuple[int, ...], trial: Trial
) -> Finding | None:
    got, whole = passed.parameters.get("qkv.weight"), right.parameters["qkv.weight"]
    if got is None or trial.size == 1:
        return None
    as_one = Share(0).of(whole, trial.rank, trial.size)
    own = Share(0, sections).of(whole, trial.rank, trial.size)
    if same(got, as_one) and not same(got, own):
        first = trial.rank * len(as_one)
        return MISTAKES.fused_as_one(rank=trial.rank, first=first, last=first + len(as_one) - 1)
    return None


def output_is(passed: Passed, right: Right, everyone: list[Passed], trial: Trial) -> Finding | None:
    same_here = same(passed.output, right.output, TOLERANCE)
    bias = right.parameters["out.bias"]
    if trial.size > 1 and not same_here:
        parts = sum(p.output for p in everyone) - (trial.size - 1) * bias
        if same(parts, right.output, TOLERANCE):
            return MISTAKES.not_summed(name="the output")
    return equal(passed.output, right.output, "the output", TOLERANCE)


def _refused(trial: Trial, heads: int, key_value_heads: int | None) -> None:
    """Whether such heads are refused, and the attention stays as it was."""
    n = trial.size
    if n == 1 or (heads % n == 0 and (key_value_heads or heads) % n == 0):
        return
    # A head size that N divides: every product can be cut evenly, and still cuts through heads.
    config = models.GPTConfig(hidden_size=heads * n, heads=heads, key_value_heads=key_value_heads)
    attention = models.Attention(config)
    before = (attention.heads, attention.key_value_heads, attention.qkv, attention.out)
    requirements.refusal(
        trial,
        lambda: trial.check.function(attention, trial.group),
        f"{heads} heads with {key_value_heads or heads} heads of keys and values",
        [heads, key_value_heads or heads],
    )
    now = (attention.heads, attention.key_value_heads, attention.qkv, attention.out)
    trial.require(lambda: None if now == before else MISTAKES.changed_before_refusing())
