"""Answers to `checkpoint`."""

import torch
import torch.utils.checkpoint
from torch import Tensor

from parlab_staff.answers import Answers

answers = Answers("checkpoint")

SAVE = "ctx.save_for_backward(*tensors)"
STATES = "ctx.states = torch.get_rng_state(), [torch.cuda.get_rng_state(gpu) for gpu in ctx.gpus]"
RUN = "        return run(*values)\n"
DETACH = "saved.detach().requires_grad_(saved.requires_grad)"
FORK = "with torch.random.fork_rng(ctx.gpus), torch.enable_grad():"
SET = "torch.set_rng_state(ctx.states[0])"
AGAIN = "outputs = ctx.run(*values)"
TUPLE = "outputs = outputs if isinstance(outputs, tuple) else (outputs,)"
WANTED = "if gradient is not None and output.requires_grad:"
EDGE = "torch.autograd.graph.get_gradient_edge(output)"
DELETE = "        del outputs, output  # the graph alone is needed, not these numbers\n"
BACKWARD = "torch.autograd.backward(ends, wanted)"
RETURN = "*(value.grad if isinstance(value, Tensor) else None for value in values)"
ANCHOR = "torch.empty(0, requires_grad=True)"
APPLY = "return Recomputation.apply(run, anchor, *args, *kwargs.values())"
MATERIALIZE = "ctx.set_materialize_grads(False)"

OF_INPUTS = (
    "leaves = [v for v in values if isinstance(v, Tensor) and v.requires_grad]\n"
    "        found = iter(torch.autograd.grad(ends, leaves, wanted, allow_unused=True))\n"
)
FROM_FOUND = (
    "*(next(found) if isinstance(v, Tensor) and v.requires_grad else None for v in values)"
)

for mistake, name, *edits in (
    ("activations_kept", "with_a_graph", (RUN, "        ctx.kept = None\n" + "        with torch.enable_grad():\n            ctx.kept = run(*[v.detach().requires_grad_(v.is_floating_point()) if isinstance(v, Tensor) else v for v in values])\n        return run(*values)\n")),
    ("other_random_numbers", "state_forgotten", (SET, "pass")),
    ("other_random_numbers", "state_after", (STATES, "result = run(*values)"), (RUN, "        " + STATES + "\n        return result\n")),
    ("other_random_numbers", "seeded", (SET, "torch.manual_seed(0)")),
    ("generator_not_put_back", "no_fork", (FORK, "with torch.enable_grad():")),
    ("parameter_without_gradient", "no_anchor", (ANCHOR, "torch.empty(0)")),
    ("parameter_without_gradient", "of_arguments_only", (BACKWARD, OF_INPUTS), (RETURN, FROM_FOUND)),
    ("counted_twice", "not_detached", (DETACH, "saved")),
    ("other_outputs_lost", "first_output", (WANTED, "if output is outputs[0]:")),
    ("called_again", "once_per_output", (DELETE, "        for _ in gradients:\n            ctx.run(*values)\n")),
    ("raises", "no_tuple", (TUPLE, "outputs = outputs if isinstance(outputs, tuple) else [outputs][:0]")),
    ("raises", "no_graph", (FORK, FORK.replace("torch.enable_grad()", "torch.no_grad()"))),
    ("raises", "all_need_gradients", (DETACH, "saved.detach().requires_grad_()")),
    ("raises", "also_without_gradient", (WANTED, "if True:")),
    ("raises", "integers_too", (WANTED, "if gradient is not None or not output.requires_grad:")),
    ("returns_none", "no_return", (APPLY, APPLY[7:])),
    (None, "gradients_lost", (RETURN, "*(None for value in values)")),
    (None, "unwrapped", (APPLY, "result = " + APPLY[7:] + "\n    return result[0] if isinstance(result, tuple) and len(result) == 1 else result")),
):
    answers.edit(mistake, name, *edits)
