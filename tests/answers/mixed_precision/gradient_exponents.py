"""Answers to `gradient_exponents`."""

import math
from collections import Counter, defaultdict
from contextlib import ExitStack

import numpy as np
import torch

from parlab.answers import Answers

answers = Answers("gradient_exponents")

EXPONENT = "exponents = torch.frexp(numbers[numbers != 0]).exponent - 1"
ZEROS = "counts[None] += int((numbers == 0).sum())"
COUNT = "output.register_hook(count)"
REMOVE = "handle.remove()"
RETURN = "return dict(counts)"

answers.edit("hooks_left", "hooks_left", (REMOVE, "pass"))
answers.edit("half_to_one", "as_frexp_says", (EXPONENT, EXPONENT.replace(" - 1", "")))
answers.edit(
    "rounded",
    "rounded",
    (EXPONENT, "exponents = numbers[numbers != 0].double().abs().log2().round().int()"),
)
answers.edit(
    "towards_zero",
    "truncated",
    (EXPONENT, "exponents = numbers[numbers != 0].double().abs().log2().int()"),
)
answers.edit("zeros_missing", "no_zeros", (ZEROS, "pass"))
answers.edit(
    "small_as_zeros",
    "zeros_of_float16",
    (EXPONENT, EXPONENT.replace("numbers != 0", "numbers.abs() >= 2**-24")),
    (ZEROS, ZEROS.replace("numbers == 0", "numbers.abs() < 2**-24")),
)
answers.edit(
    "negatives_missing",
    "logarithm_without_abs",
    (EXPONENT, "exponents = numbers[numbers > 0].double().log2().floor().int()"),
)
answers.edit(
    "negatives_missing", "above_zero", (EXPONENT, EXPONENT.replace("!= 0", "> 0")), (ZEROS, "pass")
)
answers.edit(
    "zeros_as_numbers",
    "frexp_of_zero",
    (EXPONENT, "exponents = torch.frexp(numbers.flatten()).exponent - 1"),
    (ZEROS, "pass"),
)
answers.edit(
    "gradient_changed",
    "gradient_replaced",
    (ZEROS, ZEROS + "\n        return gradient.sign()"),
)
answers.edit(
    "parameters_counted",
    "weights_gradients",
    ("    run()\n", "    run()\n    counts.clear()\n    for layer in layers:\n"
                    "        for parameter in layer.parameters():\n"
                    "            count(parameter.grad)\n"),
)  # fmt: skip
answers.edit(
    "inputs_counted",
    "inputs",
    (COUNT, "inputs[0].requires_grad and inputs[0].register_hook(count)"),
)
answers.edit("values_counted", "outputs_themselves", (COUNT, "count(output.detach())"))
answers.edit("raises", "hook_returns", (COUNT, "return " + COUNT))
answers.edit("returns_none", "no_return", (RETURN, "counts"))
answers.edit("wrong_type", "a_list", (RETURN, "return sorted(counts.items(), key=str)"))
answers.edit(
    "runs_again", "tried_first", ("    run()\n", "    run()\n    counts.clear()\n    run()\n")
)
answers.edit(
    "gradients_removed",
    "cleared_before",
    ("    run()\n", "    for layer in layers:\n        layer.zero_grad()\n    run()\n"),
)
answers.edit(
    "gradients_removed",
    "cleared_after",
    ("    run()\n", "    run()\n    for layer in layers:\n        layer.zero_grad()\n"),
)
answers.edit(
    "others_hooks_removed",
    "all_hooks_cleared",
    (REMOVE, "handle.remove()\n    for layer in layers:\n        layer._forward_hooks.clear()"),
)
answers.edit(
    "gradient_changed",
    "changed_in_place",
    (ZEROS, ZEROS + "\n        gradient.abs_()"),
)
answers.edit(
    "logarithm_rounded",
    "logarithm_in_its_dtype",
    (EXPONENT, "exponents = gradient[gradient != 0].abs().log2().floor().int()"),
)
answers.edit(
    "logarithm_rounded",
    "logarithm_in_float32",
    (EXPONENT, "exponents = numbers[numbers != 0].abs().log2().floor().int()"),
)

SEEN = Counter()


@answers.wrong("earlier_calls_counted")
def one_count_for_all(layers, run):
    SEEN.update(answers.reference()(layers, run))
    return dict(SEEN)


@answers.wrong("rounded_first")
def in_float16(layers, run):
    """What a half can hold, and no more."""
    counts = Counter()

    def count(gradient):
        numbers = gradient.half().float().clamp(-65504.0, 65504.0)
        counts.update((torch.frexp(numbers[numbers != 0]).exponent - 1).tolist())
        counts[None] += int((numbers == 0).sum())

    handles = [
        layer.register_forward_hook(lambda *given: given[-1].register_hook(count) and None)
        for layer in layers
    ]
    run()
    for handle in handles:
        handle.remove()
    return counts


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
def retained(layers, run):
    """The outputs keep their gradients; each is read after the pass."""
    outputs = []
    with ExitStack() as stack:
        for layer in layers:
            handle = layer.register_forward_hook(lambda *given: outputs.append(given[-1]))
            stack.callback(handle.remove)
            watch = layer.register_forward_hook(lambda *given: given[-1].retain_grad())
            stack.callback(watch.remove)
        run()
    counts = defaultdict(int)
    for output in outputs:
        for number in output.grad.double().flatten().tolist():
            counts[math.frexp(number)[1] - 1 if number else None] += 1
    return counts


@answers.right
def by_bits(layers, run):
    """Of a float64, which has no subnormals where these are, the exponent's eleven bits."""
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


@answers.right
def by_unique(layers, run):
    gradients = []
    handles = [
        layer.register_forward_hook(
            lambda *given: given[-1].register_hook(lambda g: gradients.append(g.clone())) and None
        )
        for layer in layers
    ]
    run()
    [handle.remove() for handle in handles]
    numbers = torch.cat([g.double().flatten() for g in gradients]).numpy()
    keys, times = np.unique(np.frexp(numbers[numbers != 0])[1] - 1, return_counts=True)
    found = dict(zip(keys.tolist(), times.tolist(), strict=True))
    return found | {None: int((numbers == 0).sum()), 99: 0}


@answers.right
def by_logarithm(layers, run):
    counts = Counter()

    def count(gradient):
        sizes = gradient.double().abs()
        for exponent in sizes.log2().floor().flatten().tolist():
            counts[None if exponent == -math.inf else int(exponent)] += 1

    def watch(layer, inputs, output):
        output.register_hook(count)

    handles = [layer.register_forward_hook(watch) for layer in layers]
    run()
    for handle in handles:
        handle.remove()
    return counts
