"""Answers to `gradient_exponents`."""

import math
from collections import Counter

import torch

from parlab_staff.answers import Answers

answers = Answers("gradient_exponents")

EXPONENT = "exponents = torch.frexp(numbers[numbers != 0]).exponent - 1"
ZEROS = "counts[None] += int((numbers == 0).sum())"
FLOAT = "numbers = gradient.float()"
REMOVE = "handle.remove()"
RETURN = "return dict(counts)"

OUTPUT_HOOK = "output.register_hook(count)"
RUN = "    run()\n"
NONZERO = "numbers[numbers != 0]"
PARAMETERS = (
    RUN + "    counts.clear()\n    for layer in layers:\n"
    "        for parameter in layer.parameters():\n            count(parameter.grad)\n"
)
CLEAR = "    for layer in layers:\n        layer.zero_grad()\n"
LOGARITHM = "exponents = {}.abs().log2().{}.int()"
ALL_HOOKS = "\n    for layer in layers:\n        layer._forward_hooks.clear()"

for mistake, name, *edits in (
    ("hooks_left", "hooks_left", (REMOVE, "pass")),
    ("half_to_one", "as_frexp_says", (EXPONENT, EXPONENT.replace(" - 1", ""))),
    (None, "truncated", (EXPONENT, LOGARITHM.format(NONZERO + ".double()", "trunc()"))),
    (None, "above_zero", (EXPONENT, EXPONENT.replace("!= 0", "> 0"))),
    ("gradient_changed", "gradient_replaced", (ZEROS, ZEROS + "\n        return gradient.sign()")),
    ("gradient_changed", "changed_in_place", (ZEROS, ZEROS + "\n        gradient.abs_()")),
    (None, "weights_gradients", (RUN, PARAMETERS)),
    (None, "no_zeros", (ZEROS, "pass")),
    (
        None,
        "zeros_of_float16",
        (EXPONENT, EXPONENT.replace("numbers != 0", "numbers.abs() >= 2**-24")),
        (ZEROS, ZEROS.replace("numbers == 0", "numbers.abs() < 2**-24")),
    ),
    (None, "inputs", (OUTPUT_HOOK, "inputs[0].requires_grad and inputs[0].register_hook(count)")),
    (None, "outputs_themselves", (OUTPUT_HOOK, "count(output.detach())")),
    (None, "tried_first", (RUN, RUN + "    counts.clear()\n" + RUN)),
    ("gradient_changed", "cleared_before", (RUN, CLEAR + RUN)),
    (None, "all_hooks_cleared", (REMOVE, REMOVE + ALL_HOOKS)),
    (None, "logarithm_in_float32", (EXPONENT, LOGARITHM.format(NONZERO, "floor()"))),
    ("raises", "a_view_of_all", (FLOAT, FLOAT.replace("gradient", "gradient.view(-1)"))),
    ("raises", "hook_returns", (OUTPUT_HOOK, "return " + OUTPUT_HOOK)),
    ("returns_none", "no_return", (RETURN, "counts")),
    ("wrong_type", "a_list", (RETURN, "return sorted(counts.items(), key=str)")),
):
    answers.edit(mistake, name, *edits)
answers.right_edit("a_count_of_zero", (RETURN, "return dict(counts) | {99: 0}"))
answers.right_edit("the_counter_itself", (RETURN, "return counts"))
answers.right_edit(
    "logarithm_in_float64", (EXPONENT, LOGARITHM.format(NONZERO + ".double()", "floor()"))
)

COUNTED = Counter()


@answers.wrong(None)
def one_count_for_all(layers, run):
    COUNTED.update(answers.reference()(layers, run))
    return dict(COUNTED)


@answers.wrong("last_use_only")
def kept_by_layer(layers, run):
    outputs = {}

    def keep(layer, inputs, output):
        output.retain_grad()
        outputs[layer] = output

    handles = [layer.register_forward_hook(keep) for layer in layers]
    run()
    for handle in handles:
        handle.remove()
    counts = Counter()
    for output in outputs.values():
        for number in output.grad.double().flatten().tolist():
            counts[math.frexp(number)[1] - 1 if number else None] += 1
    return counts


@answers.right
def by_bits(layers, run):
    counts = Counter()

    def count(gradient):
        bits = gradient.detach().cpu().double().contiguous().view(torch.int64)
        for stored in ((bits >> 52) & 2047).flatten().tolist():
            counts[stored - 1023 if stored else None] += 1

    def watch(layer, inputs, output):
        output.register_hook(count)

    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return counts


@answers.right
def full_backward_hooks(layers, run):
    counts = Counter()

    def watch(layer, given, outputs):
        sizes = outputs[0].float().abs().flatten()
        exponents = torch.where(sizes == 0, torch.nan, torch.frexp(sizes).exponent - 1.0)
        for exponent in exponents.tolist():
            counts[None if math.isnan(exponent) else int(exponent)] += 1

    handles = [layer.register_full_backward_hook(watch) for layer in layers]
    run()
    for handle in handles:
        handle.remove()
    return dict(counts)
