"""Answers to `checkpoint`."""

import torch
import torch.utils.checkpoint
from torch import Tensor

from parlab_staff.answers import Answers

answers = Answers("checkpoint")

OTHERS = "[None if isinstance(value, Tensor) else value for value in values]"
FLOATS = "[None if getattr(value, 'is_floating_point', bool)() else value for value in values]"
DETACH = "saved.detach().requires_grad_(saved.requires_grad)"
GRAPH = "torch.enable_grad()"
SET = "training.set_generator_states(ctx.states)"
PUT_BACK = "training.set_generator_states(states)"
WANTED = "if gradient is not None and output.requires_grad:"
EDGE = "torch.autograd.graph.get_gradient_edge(output)"
DELETE = "        del outputs, output  # the graph alone is needed, not these numbers\n"
BACKWARD = "torch.autograd.backward(ends, wanted)"
RETURN = "*(value.grad if isinstance(value, Tensor) else None for value in values)"
ANCHOR = "torch.empty(0, requires_grad=True)"
MATERIALIZE = "ctx.set_materialize_grads(False)"

OF_INPUTS = (
    "leaves = [v for v in values if isinstance(v, Tensor) and v.requires_grad]\n"
    "        found = iter(torch.autograd.grad(ends, leaves, wanted, allow_unused=True))"
)
NEXT_FOUND = "*(next(found) if isinstance(v, Tensor) and v.requires_grad else None for v in values)"
ONCE_MORE = "        for _ in gradients[1:]:\n            ctx.run(*values)\n"

for mistake, name, *edits in (
    ("other_random_numbers", "state_forgotten", (SET, "pass")),
    ("generator_not_put_back", "left_there", (PUT_BACK, "pass")),
    ("parameter_without_gradient", "no_anchor", (ANCHOR, "torch.empty(0)")),
    (
        "parameter_without_gradient",
        "of_arguments_only",
        (BACKWARD, OF_INPUTS),
        (RETURN, NEXT_FOUND),
    ),
    (None, "not_detached", (DETACH, "saved")),
    (
        None,
        "all_arguments_require_gradients",
        (
            ANCHOR,
            f"{ANCHOR}\n    floats = [v for v in args if isinstance(v, Tensor) and v.is_leaf]\n"
            "    _ = [v.requires_grad_() for v in floats if v.is_floating_point()]",
        ),
    ),
    (None, "first_output", (WANTED, "if output is outputs[0]:")),
    (None, "once_for_each_output", (DELETE, ONCE_MORE)),
    ("wrong_type", "no_graph", (GRAPH, "torch.no_grad()")),
    ("raises", "ends_without_gradient", (WANTED, "if True:")),
    ("arguments_kept", "arguments_in_ctx", (OTHERS, "list(values)")),
    ("arguments_kept", "integers_in_ctx", (OTHERS, FLOATS)),
):
    answers.edit(mistake, name, *edits)


class Recomputed(torch.autograd.Function):
    """As the reference, with less care: `keep` says what else to remember."""

    kept: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, function, keep, *tensors):
        ctx.function, ctx.keep = function, keep
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx, *gradients):
        tensors = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        state = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            outputs = ctx.function(*tensors)
        torch.set_rng_state(state)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        torch.autograd.backward(*zip(*pairs, strict=True), retain_graph=ctx.keep)
        if ctx.keep:
            Recomputed.kept.append(outputs)
        return None, None, *(t.grad for t in tensors)


def with_tensors(keep, function, args, kwargs):
    """Only tensors are arguments of `apply`, and a partial function has the others."""
    named = [*enumerate(args), *kwargs.items()]
    others = {key: value for key, value in named if not isinstance(value, Tensor)}
    keys = [key for key, value in named if isinstance(value, Tensor)]
    count = len(args)

    def called(anchor, *tensors):
        given = others | dict(zip(keys, tensors, strict=True))
        positions = [given.pop(i) for i in range(count)]
        return function(*positions, **given)

    tensors = [value for _, value in named if isinstance(value, Tensor)]
    return Recomputed.apply(called, keep, torch.zeros(1).requires_grad_(), *tensors)


@answers.wrong("never_freed")
def keeps_the_second_pass(function, *args, **kwargs):
    return with_tensors(True, function, args, kwargs)


@answers.wrong("never_freed")
def keeps_the_last_second_pass(function, *args, **kwargs):
    def called(*args, **kwargs):
        Recomputed.kept.clear()
        return function(*args, **kwargs)

    return with_tensors(True, called, args, kwargs)


@answers.wrong(None)
def keywords_aside(function, *args, **kwargs):
    detached = {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
    return with_tensors(False, lambda *args: function(*args, **detached), args, {})


@answers.wrong("activations_kept")
def plain(function, *args, **kwargs):
    return function(*args, **kwargs)


@answers.wrong("uses_library")
def library(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


@answers.wrong("wrong_type")
def without_graph(function, *args, **kwargs):
    with torch.no_grad():
        return function(*args, **kwargs)


@answers.wrong(None, says="it returns a Tensor, but the function returns a tuple with one tensor")
def the_only_output(function, *args, **kwargs):
    outputs = with_tensors(False, function, args, kwargs)
    return outputs[0] if isinstance(outputs, tuple) and len(outputs) == 1 else outputs


@answers.right
def tensors_apart(function, *args, **kwargs):
    return with_tensors(False, function, args, kwargs)


@answers.right
def with_hooks(function, *args, **kwargs):
    """Saved-tensor hooks in place of a Function: the first tensor that is needed starts it."""
    state, saved, recomputed = torch.get_rng_state(), 0, {}

    def pack(tensor):
        nonlocal saved
        saved += 1
        return saved - 1

    def pack_again(tensor):
        recomputed[len(recomputed)] = tensor.detach()
        return tensor.detach()

    def unpack(index):
        if not recomputed:
            hooks = torch.autograd.graph.saved_tensors_hooks(pack_again, lambda tensor: tensor)
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), hooks:
                torch.set_rng_state(state)
                function(*args, **kwargs)
        tensor, recomputed[index] = recomputed[index], None
        if all(value is None for value in recomputed.values()):
            recomputed.clear()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(*args, **kwargs)


answers.right_edit("outputs_as_ends", (EDGE, "output"), (DELETE, ""))
