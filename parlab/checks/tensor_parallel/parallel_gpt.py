"""Exercise `parallel_gpt`."""

from torch import nn

from parlab import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _gpt as gpt
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import uses_classes

MISTAKES = Mistakes(
    **gpt.MISTAKES.texts,
    **layers.texts("not_summed", "sends_more"),
)


@check_of(MISTAKES)
def parallel_gpt(check: Check) -> str:
    """Check shares, scores, gradients, and calls of the whole model, plain and grouped."""
    for number, trial in enumerate(check.trials()):
        for _, grouped in trial.cases(gpt.GROUPED):
            if number == 0 or grouped == bool(number % 2):
                _model(trial, grouped)
        if number == 0:
            _block(trial)
    return (
        "this rank's share of every weight, scores and gradient of the serial GPT, and one "
        f"all-reduce each way for each attention and MLP, on 1 to {check.world_size} ranks"
    )


def _model(trial: Trial, grouped: bool) -> None:
    before: dict[str, object] = {}

    def cut(model: nn.Module) -> nn.Module:
        before.update(_kept(model))
        return trial.check.function(model, trial.group)

    def form(model: nn.Module) -> Finding | None:
        now = _kept(model)
        for name, value in before.items():
            if now.get(name) is not value:
                return observed(f"{name} is another object than before: change the model in place")
        return gpt.is_tied(model) or gpt.keeps_names(model)

    case = gpt.case(trial, MISTAKES, grouped, cut=cut, form=form, in_place=True)
    case.forward = case.backward = 2 * gpt.LAYERS + 1
    case.message = 8 * case.x.numel() * 4 * trial.size
    layers.compare(trial, case)


def _kept(model: nn.Module) -> dict[str, object]:
    """Return objects that must stay the same: blocks, norms, positions, and their parameters."""
    kept: dict[str, object] = {f"block {i}": block for i, block in enumerate(model.blocks)}
    for name, module in model.named_modules():
        if "norm" in name or name == "positions":
            kept |= {name: module}
            kept |= {f"{name}.{one}": p for one, p in module.named_parameters()}
    return kept


def _block(trial: Trial) -> None:
    """Check `parallel_block` in the same cell, because part C cuts blocks with other classes."""
    parallel_block = getattr(trial.check.function, "__globals__", {}).get("parallel_block")
    if parallel_block is None:
        return
    block = models.Block(gpt.config(trial))
    got = uses_classes(trial, parallel_block, block, ["column", "row", "column", "row"])
    trial.require(
        lambda: (
            None
            if got is block
            else observed("`parallel_block` does not return the block that it changes")
        )
    )
