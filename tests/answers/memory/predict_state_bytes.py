"""Answers to `predict_state_bytes`."""

import math

import numpy as np
import torch
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("predict_state_bytes")

ADAM = '"adam": 8 * numbers'
MOMENTUM = '"momentum": 4 * numbers'
ADAFACTOR = '"adafactor": 4 * sum(map(sum, shapes))'
MATRICES = "sum(map(sum, [s for s in shapes if len(s) == 2]))"

answers.edit("numbers", "in_numbers", (ADAM, '"adam": 2 * numbers'))
answers.edit("numbers", "rows_and_columns", (ADAFACTOR, '"adafactor": sum(map(sum, shapes))'))
answers.edit("with_parameters", "parameters_too", (MOMENTUM, '"momentum": 8 * numbers'))
answers.edit("with_parameters", "three_copies", (ADAM, '"adam": 12 * numbers'))
answers.edit("one_moment", "one_moment", (ADAM, '"adam": 4 * numbers'))
answers.edit("product", "whole_moment", (ADAFACTOR, '"adafactor": 4 * numbers'))
answers.edit(
    "first_moment",
    "with_momentum",
    (ADAFACTOR, '"adafactor": 4 * numbers + 4 * sum(map(sum, shapes))'),
)
answers.edit(
    None,
    "matrices_only",
    (ADAFACTOR, f'"adafactor": 4 * {MATRICES}'),
)
answers.edit(
    "product",
    "only_if_it_is_less",
    (ADAFACTOR, '"adafactor": 4 * sum(min(sum(s), math.prod(s)) for s in shapes)'),
)
answers.edit(None, "gradients_and_parameters", (ADAM, '"adam": 16 * numbers'))
answers.edit(None, "rows_alone", (ADAFACTOR, '"adafactor": 4 * sum(s[0] for s in shapes)'))


@answers.right
def shape_by_shape(shapes):
    found = {"momentum": 0.0, "adam": 0.0, "adafactor": 0.0}
    for shape in shapes:
        size = math.prod(shape)
        found["momentum"] += 4.0 * size
        found["adam"] += 8.0 * size
        found["adafactor"] += 4.0 * (size if len(shape) == 1 else shape[0] + shape[1])
    return found


@answers.right
def with_counts(shapes):
    """Adds another entry, which is not compared."""
    return answers.reference()(shapes) | {"sgd": 0}


@answers.right
def measured(shapes):
    """Takes a step with each optimizer, and counts; without the number of steps."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizers = {
        "momentum": torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "adam": torch.optim.Adam(parameters),
        "adafactor": torch.optim.Adafactor(parameters),
    }
    found = {}
    for name, optimizer in optimizers.items():
        optimizer.step()
        kept = [s.items() for s in optimizer.state.values()]
        found[name] = sum(v.nbytes for items in kept for key, v in items if key != "step")
    return found


@answers.right
def in_float32_words(shapes):
    """Counts numbers of NumPy first, and then the bytes of all."""
    sizes = [np.array(shape) for shape in shapes]
    numbers = sum(int(size.prod()) for size in sizes)
    words = {"momentum": numbers, "adam": numbers * 2, "adafactor": sum(s.sum() for s in sizes)}
    return {name: float(4 * count) for name, count in words.items()}


@answers.right
def rows_and_columns_of_a_matrix(shapes):
    adafactor = 0
    for shape in shapes:
        match shape:
            case (n, m):
                adafactor += 4 * n + 4 * m
            case (n,):
                adafactor += 4 * n
    return answers.reference()(shapes) | {"adafactor": adafactor}


answers.edit(
    None,
    "each_shape_once",
    (MOMENTUM, '"momentum": 4 * sum(map(math.prod, set(shapes)))'),
    says="momentum",
)
