"""Requirements on when which layers are whole, in a stage that shards the parameters."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from parlab import memory
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Requirement, Trial
from parlab.checks.base.watchdog import Ended
from parlab.checks.zero._steps import Step, named, steps
from parlab.checks.zero._training import MakeOptimizer

NO_MEMORY = {
    "not_whole": (
        "a {which} pass of a layer begins while its parameters are freed: gather them in "
        "before_{which}"
    ),
    "other_memory": (
        "a layer computes with parameters without memory. They are views of the first `unit.flat`: "
        "resize its storage, make no new tensor, and free it only after the layer's pass"
    ),
}


def sharded_steps(
    trial: Trial,
    make_optimizer: MakeOptimizer,
    make_model: Callable,
    mistakes: Mistakes,
    note: Callable[[Trial, Any], None] = lambda *_: None,
    evaluates: bool = False,
) -> Iterator[Step]:
    """Train for two steps, the second with two passes. `note` may register more hooks."""
    samples = trial.draw.sample(range(1, 2 * trial.size + 2), trial.size)
    plan = [[samples], [samples, samples[::-1]]]

    def watch(trial: Trial, model: Any, stage: Any) -> dict[str, int]:
        peaks = watch_parameters(model, stage)
        note(trial, model)
        return peaks

    yield from steps(
        trial,
        make_optimizer,
        plan,
        layers="used_layers",
        make_model=make_model,
        watch=watch,
        explain=lambda endings: no_memory(endings, mistakes),
        evaluates=evaluates,
    )


def no_memory(endings: dict[int, Ended], mistakes: Mistakes) -> Finding | None:
    """Recognize the errors of the lab and of PyTorch for parameters whose memory is freed."""
    errors = [ended.error for ended in endings.values()]
    for which in ("forward", "backward"):
        if any(f"a {which} pass begins" in error for error in errors):
            return named(NO_MEMORY, mistakes, "not_whole", which=which)
    if any("for storage of size 0" in error for error in errors):
        return named(NO_MEMORY, mistakes, "other_memory")
    return None


def watch_parameters(model: nn.Module, stage: Any) -> dict[str, int]:
    """Measure the most bytes of trainable parameters in the passes, and between the two."""
    peaks = {"forward": 0, "backward": 0, "between": 0}
    trainable = [p for p in model.parameters() if p.requires_grad]

    def note(when: str) -> None:
        held = memory.tensor_bytes(t.detach() for t in [*trainable, *stage.shards])
        peaks[when] = max(peaks[when], held)

    def ran(layer: nn.Module, given: Any, output: Tensor) -> None:
        note("forward")
        if output.requires_grad:
            output.register_hook(lambda _: note("backward"))

    for layer in model.modules():
        layer.register_forward_pre_hook(lambda *_: note("forward"))
        layer.register_forward_hook(ran)
    model.register_forward_hook(lambda *_: note("between"))
    for parameter in trainable:
        parameter.register_post_accumulate_grad_hook(lambda _: note("backward"))
    return peaks


def whole_at_most(
    step: Step, mistake: Callable[..., Finding], limits: Mapping[str, int]
) -> list[Requirement]:
    """Require at most these bytes of parameters, in addition to shards, at each of these times."""
    times = {
        "forward": "in the forward pass",
        "backward": "in the backward pass",
        "between": "between the forward pass and the backward pass",
        "after": "after step()",
        "evaluated": "after a forward pass without gradients (torch.no_grad)",
    }

    def require(when: str, right: int) -> Finding | None:
        held = step.record.bytes_held
        peaks = step.record.peaks | {
            "after": held["parameters"],
            "evaluated": held.get("evaluated", 0),
        }
        got = peaks[when] - step.shard_bytes
        return mistake(when=times[when], got=got, right=right) if got > right else None

    return [lambda limit=limit: require(*limit) for limit in limits.items()]
