"""Exercise `memory_by_kind`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only
from parlab.checks.base.models import tokens
from parlab.checks.base.predictions import form
from parlab.checks.zero._models import awkward_blocks

MISTAKES = Mistakes(
    tied_twice="{kind}: a parameter that two layers share counts twice, but it is one tensor",
    frozen_left_out="{kind}: the bytes of frozen parameters are left out, but they take memory",
    gradients_assumed=(
        "{kind}: as many bytes as parameters. Count only gradients that exist (.grad is not None)"
    ),
    states_assumed=(
        "{kind}: this is twice the parameters. Count the states in optimizer.state, which depend "
        "on the optimizer and on its steps"
    ),
    numbers="{kind}: this is the number of elements, not of bytes",
    buffers_count="{kind}: the buffers of the model are counted, too. They are not parameters",
)


OPTIMIZERS = {
    "Adam": torch.optim.Adam,
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
}
TIMES = ("before any step", "after a step", "after a step, with parameters frozen since")


@check_of(MISTAKES, ranks=1)
def memory_by_kind(check: Check) -> str:
    """Check several optimizers, before and after a step, with parameters of two dtypes."""
    with check.trial() as trial:
        for _, make_optimizer in trial.cases(OPTIMIZERS):
            model = awkward_blocks(trial.draw)
            model.unused.float()
            model.register_buffer("mask", torch.ones(7))  # not a parameter
            shard = nn.Parameter(torch.ones(5))  # as in stage 1, where the model does not have it
            optimizer = make_optimizer([*filter(needs_gradient, model.parameters()), shard])
            inputs, _ = tokens(trial.draw, model, 3)
            for when, _ in trial.cases(dict.fromkeys(TIMES)):
                if when == TIMES[1]:
                    # The first and the last parameter get gradients; some between them do not.
                    (model(inputs).square().sum() + model.spare.sum()).backward()
                    shard.grad = torch.ones(5)
                    optimizer.step()
                    # A state need not be a tensor, and need not have its parameter's dtype.
                    halved = model.spare.detach().half()
                    optimizer.state[model.spare] |= {"steps": 1, "halved": halved}
                elif when == TIMES[2]:
                    model.blocks[0].requires_grad_(False)
                got = trial.run(model, optimizer)
                right = asdict(memory.model_states(model, optimizer))
                trial.require(
                    lambda: form(got, right),
                    lambda: bytes_are_right(got, right, wrong_bytes(model)),
                )
    return "every byte, for a tied weight, a frozen one and one without gradient, of two dtypes"


def needs_gradient(parameter: Tensor) -> bool:
    return parameter.requires_grad


def wrong_bytes(model: nn.Module) -> dict[str, dict[str, int]]:
    """Return what each mistake counts, by kind."""

    def count(tensors: Iterable[Tensor | None]) -> int:
        return sum(t.nbytes for t in tensors if t is not None)

    parameters = list(model.parameters())
    trainable = [p for p in parameters if p.requires_grad]
    twice = [p for _, p in model.named_parameters(remove_duplicate=False)]
    return {
        "parameters": {
            "tied_twice": count(twice),
            "frozen_left_out": count(trainable),
            "numbers": sum(p.numel() for p in parameters),
            "buffers_count": count([*parameters, *model.buffers()]),
        },
        "gradients": {
            "tied_twice": count(p.grad for p in twice),
            "frozen_left_out": count(p.grad for p in trainable),
            "gradients_assumed": count(parameters),
        },
        "optimizer_states": {"states_assumed": 2 * count(trainable)},
    }


def bytes_are_right(
    got: Mapping[str, float], right: dict[str, int], wrong: dict[str, dict[str, int]]
) -> Finding | None:
    """Name the only mistake that explains the first wrong number."""
    for kind, value in right.items():
        if got[kind] == value:
            continue
        known = (key for key, other in wrong[kind].items() if got[kind] == other != 0)
        mistake = the_only(MISTAKES, known, kind=kind)
        return mistake or observed(f"{kind}: {got[kind]} bytes, expected {value}")
    return None
