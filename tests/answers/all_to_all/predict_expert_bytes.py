"""Answers to `predict_expert_bytes`."""

import math

from parlab_staff.answers import Answers

answers = Answers("predict_expert_bytes")

CAPACITY = "math.ceil(factor * tokens * k / experts)"
EXCHANGE = "exchange = 4 * experts * capacity * hidden * others"
LAYER = '"layer": 4 * exchange'

answers.edit(
    "capacity_of_all_ranks",
    "slots_for_all_ranks",
    (CAPACITY, "math.ceil(factor * world_size * tokens * k / experts)"),
)
answers.edit(None, "one_choice_only", (CAPACITY, CAPACITY.replace(" * k", "")))
answers.edit("not_rounded_up", "rounded_down", (CAPACITY, CAPACITY.replace("math.ceil", "int")))
answers.edit(None, "one_more", (CAPACITY, "int(factor * tokens * k / experts) + 1"))
answers.edit("not_rounded_up", "not_rounded", (CAPACITY, CAPACITY.replace("math.ceil", "")))
answers.edit(None, "at_most_the_tokens", (CAPACITY, f"min(tokens, {CAPACITY})"))
answers.edit("elements", "numbers", (EXCHANGE, EXCHANGE.replace("4 * ", "")))
answers.edit("own_part", "all_slots", ("(world_size - 1) / world_size", "1"))
answers.edit(
    "only_needed",
    "without_empty_slots",
    (EXCHANGE, "exchange = 4 * tokens * k * hidden * others"),
)
answers.edit("too_few_exchanges", "one_all_to_all", (LAYER, '"layer": exchange'))
answers.edit("too_few_exchanges", "forward_only", (LAYER, '"layer": 2 * exchange'))
answers.edit(None, "no_layer", (f"        {LAYER},\n", ""))


@answers.right
def from_slots(tokens, hidden, experts, k, factor, world_size):
    slots = -int(-factor * tokens * k // experts)
    row = hidden * 4
    to_others = experts // world_size * (world_size - 1)
    sent = to_others * slots * row
    balanced = tokens * k * row * to_others / experts
    return {"capacity": slots, "exchange": sent, "layer": sent * 4, "needed": balanced * 4}


@answers.right
def by_rank(tokens, hidden, experts, k, factor, world_size):
    """Add up what goes to each other rank."""
    capacity = math.ceil(tokens * k / experts * factor)
    own = experts / world_size
    numbers = {
        "exchange": sum(own * capacity * hidden for _ in range(1, world_size)),
        "needed": sum(tokens * k / world_size * hidden for _ in range(1, world_size)),
    }
    return {
        "needed": 16.0 * numbers["needed"],
        "capacity": float(capacity),
        "exchange": 4.0 * numbers["exchange"],
        "layer": 16.0 * numbers["exchange"],
    }


answers.right_edit("one_expression", (EXCHANGE, "exchange = 4 * experts * capacity * hidden"
    " - 4 * experts * capacity * hidden / world_size"))  # fmt: skip
answers.right_edit("more_numbers", (LAYER, f'"others": others, {LAYER}'))


@answers.right
def rounded(tokens, hidden, experts, k, factor, world_size):
    numbers = answers.reference()(tokens, hidden, experts, k, factor, world_size)
    return {name: round(number) for name, number in numbers.items()}


answers.edit(
    None,
    "rounded_before_the_factor",
    (CAPACITY, "math.ceil(factor * math.ceil(tokens * k / experts))"),
    says="capacity",
)
