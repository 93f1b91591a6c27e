"""Answers to `zigzag_positions`."""

import torch

from parlab_staff.answers import Answers

answers = Answers("zigzag_positions")

CONCATENATED = "torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=1)"

answers.edit("not_turned_around", "late_in_order", ("chunks[ranks:].flip(0)", "chunks[ranks:]"))
answers.edit(None, "striped", (CONCATENATED, "chunks.view(-1, ranks).T.contiguous()"))
answers.edit(
    "late_first",
    "late_first",
    (CONCATENATED, "torch.cat((chunks[ranks:].flip(0), chunks[:ranks]), 1)"),
)
answers.edit(
    None,
    "half_the_chunks",
    ("if sequence % (2 * ranks)", "if sequence % ranks"),
    says="Raise a ValueError",
)
answers.edit("wrong_dtype", "floats", ("torch.arange(sequence)", "torch.arange(float(sequence))"))
answers.edit("wrong_shape", "by_chunk", (CONCATENATED, f"{CONCATENATED}.view(2 * ranks, -1)"))
answers.edit("wrong_type", "a_list", (CONCATENATED, f"{CONCATENATED}.tolist()"))
answers.edit(
    None,
    "nothing_named",
    ("a sequence of {sequence}", "{sequence} tokens"),
    says="does not name `sequence`",
)


@answers.wrong("not_refused")
def shortened(sequence, ranks):
    """Leaves out the tokens that do not fit."""
    length = sequence // (2 * ranks)
    chunks = torch.arange(2 * ranks * length).view(2 * ranks, length)
    return torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=1)


@answers.right
def a_loop(sequence, ranks):
    length, rest = divmod(sequence, 2 * ranks)
    if rest:
        raise ValueError(f"a sequence of {sequence} tokens on {ranks} ranks")
    rows = []
    for r in range(ranks):
        late = 2 * ranks - 1 - r
        early_tokens = torch.arange(r * length, (r + 1) * length)
        rows.append(torch.cat([early_tokens, torch.arange(late * length, (late + 1) * length)]))
    return torch.stack(rows)


@answers.right
def chunked(sequence, ranks):
    if sequence % (2 * ranks) != 0:
        raise ValueError("sequence is not a multiple of two chunks for each rank")
    chunks = torch.arange(sequence).chunk(2 * ranks)
    return torch.stack([torch.cat((chunks[r], chunks[-1 - r])) for r in range(ranks)])


@answers.right
def by_index(sequence, ranks):
    if sequence % (2 * ranks):
        raise ValueError(f"sequence={sequence}")
    early = torch.arange(ranks)
    order = torch.stack((early, 2 * ranks - 1 - early), 1).flatten()
    return torch.arange(sequence).view(2 * ranks, -1)[order].view(ranks, -1)


@answers.right
def filled(sequence, ranks):
    if sequence % (2 * ranks):
        raise ValueError(f"sequence: {sequence}")
    half = sequence // (2 * ranks)
    places = torch.empty(ranks, 2 * half, dtype=torch.int64)
    for r in range(ranks):
        places[r, :half] = torch.arange(half) + r * half
        places[r, half:] = torch.arange(half) + (2 * ranks - 1 - r) * half
    return places


@answers.right
def formula(sequence, ranks):
    if sequence % (2 * ranks):
        raise ValueError(f"sequence {sequence}")
    length = sequence // (2 * ranks)
    r, i = torch.arange(ranks)[:, None], torch.arange(2 * length)[None]
    late = 2 * ranks - 1 - r
    return torch.where(i < length, r * length + i, late * length + i - length)
