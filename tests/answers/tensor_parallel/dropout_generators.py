"""Answers to `dropout_generators`."""

import random

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("dropout_generators")

APART = "manual_seed(2**31 + seed * group.size() + group.rank())"

answers.edit("same_mask_everywhere", "one_seed", (APART, "manual_seed(seed + 1000)"))
answers.edit(
    "shared_numbers", "rank_0_is_both", (APART, "manual_seed(seed + 10**7 * group.rank())")
)
answers.edit(
    "together_differs",
    "rank_in_both",
    ("manual_seed(seed)", "manual_seed(seed + 10**7 * group.rank())"),
)
answers.edit(
    "shared_numbers", "begins_low", (APART, "manual_seed(1 + seed * group.size() + group.rank())")
)
answers.edit(None, "one", ("return together, apart", "return together, together"))
answers.edit(
    None,
    "fresh",
    (
        "apart = torch.Generator(device)." + APART,
        "apart = torch.Generator(device)\n    apart.seed()",
    ),
)
answers.edit(
    "global_generator",
    "global",
    (
        "return together, apart",
        "torch.manual_seed(seed)\n    return together, torch.default_generator",
    ),
)
answers.edit(
    "shared_numbers", "above_32_bits", (APART, "manual_seed(seed + (1 + group.rank()) * 2**32)")
)
answers.edit(
    "shared_numbers",
    "further_in_one_stream",
    (APART, "manual_seed(seed)\n    torch.rand(20 * (1 + group.rank()), generator=apart)"),
)
answers.edit(
    "shared_numbers",
    "a_thousand_seeds_for_a_rank",
    (APART, "manual_seed(2_000_000 + seed + 1000 * group.rank())"),
)
answers.edit(
    "later_part",
    "far_in_one_stream",
    (
        APART,
        "manual_seed(seed + 2_000_000)\n    torch.rand(5000 * group.rank(), generator=apart)",
    ),
)
answers.edit(
    "of_process",
    "hash_of_a_string",
    (APART, 'manual_seed(hash(f"{seed} apart {group.rank()}") % 2**31)'),
)
answers.edit("returns_none", "no_return", ("return together, apart", "together, apart"))


@answers.wrong("of_process")
def rank_of_the_lab(seed, group, device):
    from parlab.rank import rank

    together = torch.Generator(device).manual_seed(seed)
    return together, torch.Generator(device).manual_seed(2**31 + seed * 4096 + rank)


@answers.right
def from_a_hash(seed, group, device):
    together, apart = torch.Generator(device), torch.Generator(device)
    together.manual_seed(seed)
    apart.manual_seed(random.Random(f"{seed}, {group.rank()}").getrandbits(63))
    return together, apart


@answers.right
def drawn_from_together(seed, group, device):
    """A generator gives the ranks their seeds."""
    source = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (group.size(),), generator=source)
    return (
        torch.Generator(device).manual_seed(seed),
        torch.Generator(device).manual_seed(seeds[group.rank()].item()),
    )


@answers.right
def broadcast(seed, group, device):
    """Rank 0 tells all ranks the seeds."""
    seeds = torch.tensor([seed * 1_000_003 + r for r in range(group.size() + 1)])
    dist.broadcast(seeds, group_src=0, group=group)
    made = [torch.Generator(device) for _ in range(2)]
    made[0].manual_seed(seeds[-1].item())
    made[1].manual_seed(seeds[group.rank()].item())
    return made


@answers.wrong("later_part")
def skips_ahead(seed, group, device):
    """A later part of one stream for each rank, which the exercise's text excludes."""
    together = torch.Generator(device).manual_seed(2 * seed)
    apart = torch.Generator(device)
    apart.manual_seed(2 * seed + 1)
    for _ in range(group.rank()):
        torch.rand(100_003, generator=apart)
    return together, apart


@answers.wrong("shared_numbers")
def apart_at_4096(seed, group, device):
    together = torch.Generator(device).manual_seed(seed)
    apart = torch.Generator(device).manual_seed(4096 * (seed + 1) + group.rank())
    return together, apart


@answers.wrong("shared_numbers")
def beyond_32_bits(seed, group, device):
    together = torch.Generator(device).manual_seed(seed)
    apart = torch.Generator(device).manual_seed(2_000_000 + seed * 2**16 + group.rank())
    return together, apart


@answers.right
def strided_seeds(seed, group, device):
    one = torch.Generator(device)
    one.manual_seed(seed * 4096)
    other = torch.Generator(device)
    other.manual_seed(seed * 4096 + 1 + group.rank())
    return one, other
