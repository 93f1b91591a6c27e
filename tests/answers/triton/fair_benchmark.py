"""Answers to `fair_benchmark`."""

import random
import statistics
import time

import numpy as np
import torch

from parlab_staff.answers import Answers

answers = Answers("fair_benchmark")
reference = answers.reference()

STEPS = "steps = {name: make(make_parameters()) for name, make in makers.items()}"
FROM_EVERY = "steps = {name: make(every[name]) for name, make in makers.items()}"
ONE_LIST = "p = make_parameters()\n    steps = {name: make(p) for name, make in makers.items()}"
WARM_UP = """    for step in steps.values():
        for _ in range(warm_up):
            step()
"""
ROUNDS = "for _ in range(rounds):\n        for name, step in steps.items():"
IN_BLOCKS = "for name, step in steps.items():\n        for _ in range(rounds):"
START = "            start = clock()"
BEFORE = f"            synchronize()\n{START}"
TIMES = "            times[name].append"
AFTER = f"            synchronize()\n{TIMES}"
MEDIAN = "statistics.median(seconds)"

answers.edit("no_warm_up", "cold", (WARM_UP, ""))
answers.edit("no_warm_up", "one_step_of_warm_up", ("range(warm_up)", "range(1)"))
answers.edit("not_synchronized", "never_waits", (BEFORE, START), (AFTER, TIMES))
answers.edit("not_synchronized", "waits_before_only", (AFTER, TIMES))
answers.edit("one_after_the_other", "in_blocks", (ROUNDS, IN_BLOCKS))
answers.edit("shared_parameters", "one_list", (STEPS, ONE_LIST))
answers.edit("mean", "mean_of_times", (MEDIAN, "statistics.mean(seconds)"))
answers.edit(None, "fastest", (MEDIAN, "min(seconds)"), says="expected the median")
answers.edit(
    None, "numbered", ("return {name: stat", "return {name + ' (s)': stat"), says="has the names"
)
answers.edit("wrong_type", "without_names", ("return {name: ", "return {"))
answers.edit(None, "made_twice", (STEPS, f"{STEPS}\n    {STEPS}"), says="these optimizers are made")
answers.edit(
    None,
    "copied_parameters",
    (STEPS, STEPS.replace("make_parameters()", "list(make_parameters())")),
    says="does not get a list that `make_parameters()` returns",
)
answers.edit(None, "one_round", ("range(rounds)", "range(1)"), says="calls of `clock()`")


@answers.wrong(None)
def from_creation_on(makers, make_parameters, rounds, warm_up, clock, synchronize):
    """A new optimizer in each round, inside the time."""
    times = {name: [] for name in makers}
    for name, make in makers.items():
        for _ in range(rounds):
            synchronize()
            start = clock()
            make(make_parameters())()
            synchronize()
            times[name].append(clock() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


@answers.wrong("steps_together")
def mean_of_all(makers, make_parameters, rounds, warm_up, clock, synchronize):
    found = {}
    for name, make in makers.items():
        step = make(make_parameters())
        for _ in range(warm_up):
            step()
        synchronize()
        start = clock()
        for _ in range(rounds):
            step()
        synchronize()
        found[name] = (clock() - start) / rounds
    return found


@answers.wrong(None, says="calls of `clock()`")
def another_clock(makers, make_parameters, rounds, warm_up, clock, synchronize):
    return reference(makers, make_parameters, rounds, warm_up, time.perf_counter, synchronize)


@answers.wrong("wrong_type")
def list_of_times(*arguments):
    return list(reference(*arguments).values())


@answers.right
def in_random_order(makers, make_parameters, rounds, warm_up, clock, synchronize):
    steps = [(name, make(make_parameters())) for name, make in makers.items()]
    for _ in range(warm_up):
        for _, step in steps:
            step()
    synchronize()
    order = random.Random(0)
    times = {name: [] for name in makers}
    for _ in range(rounds):
        for name, step in order.sample(steps, len(steps)):
            start = clock()
            step()
            synchronize()
            times[name].append(clock() - start)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


@answers.right
def end_is_the_next_start(makers, make_parameters, rounds, warm_up, clock, synchronize):
    steps = {name: make(make_parameters()) for name, make in makers.items()}
    for step in steps.values():
        for _ in range(warm_up):
            step()
    times = {name: [] for name in steps}
    synchronize()
    last = clock()
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            synchronize()
            now = clock()
            times[name].append(now - last)
            last = now
    return {name: statistics.median_high(seconds) for name, seconds in times.items()}


@answers.right
def warm_up_timed(makers, make_parameters, rounds, warm_up, clock, synchronize):
    """The first times are left out."""
    steps = {name: make(make_parameters()) for name, make in makers.items()}
    times = {name: [] for name in steps}
    for _ in range(warm_up + rounds):
        for name, step in steps.items():
            synchronize()
            start = clock()
            step()
            synchronize()
            times[name].append(clock() - start)
    return {name: statistics.median(seconds[warm_up:]) for name, seconds in times.items()}


@answers.right
def median_by_torch(makers, make_parameters, rounds, warm_up, clock, synchronize):
    names = list(makers)
    steps = [makers[name](make_parameters()) for name in names]
    for step in steps * (warm_up + 1):
        step()
        synchronize()
    times = torch.zeros(rounds, len(names))
    for i in range(rounds):
        for j, step in enumerate(steps):
            start = clock()
            step()
            synchronize()
            times[i, j] = clock() - start
    return dict(zip(names, times.median(0).values.tolist(), strict=True))


answers.right_edit(
    "all_parameters_first",
    (STEPS, f"every = {{name: make_parameters() for name in makers}}\n    {FROM_EVERY}"),
)
