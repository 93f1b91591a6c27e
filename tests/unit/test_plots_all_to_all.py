"""The figures of chapter 09 show the data that they are given."""

import numpy as np

from parlab.costs.all_to_all import ring_schedule
from parlab.plots import all_to_all as pictures
from parlab.plots import all_to_all_contexts as contexts

LAYOUTS = {"contiguous": [[0, 1], [2, 3]], "zigzag": [[0, 3], [1, 2]]}


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_in_a_step_each_rank_sends_as_many_ranks_ahead() -> None:
    names = texts(pictures.pairwise_steps("Pairs", 3).axes[0])
    cells = [name for name in names if name.startswith(("step", "copy"))]
    rows = [cells[3 * i : 3 * i + 3] for i in range(3)]
    assert rows == [
        ["copy", "step 1", "step 2"],
        ["step 2", "copy", "step 1"],
        ["step 1", "step 2", "copy"],
    ]


def test_a_queue_shows_its_tokens_its_empty_slots_and_what_it_drops() -> None:
    figure = pictures.queues("Queues", [[("t0", "1"), ("t2", "2")], []], ["t5", ""], 2)
    assert texts(figure.axes[0]) == ["expert 0", "t0", "t2", "drops t5", "expert 1", "0", "0"]


def test_loads_are_averaged_over_steps() -> None:
    shares = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.5, 0.5]])
    axes = pictures.loads("Loads", {"run": shares}, smooth=2).axes[0]
    top = axes.collections[0].get_paths()[0].vertices[:, 1].max()
    assert top == 75.0  # the expert with the largest share at the end is at the bottom
    assert axes.get_title(loc="center") == "run"


def test_the_exchange_brings_each_block_to_the_rank_of_its_expert() -> None:
    before, after = pictures.expert_exchange("Exchange", 2, 4).axes
    names = {f"E{expert} of {sender}" for expert in range(4) for sender in range(2)}
    assert {*texts(before)} - {"rank 0", "rank 1"} == names
    first, second = np.reshape([name for name in texts(after) if name[0] == "E"], (2, 4))
    assert list(first) == ["E0 of 0", "E1 of 0", "E0 of 1", "E1 of 1"]
    assert list(second) == ["E2 of 0", "E3 of 0", "E2 of 1", "E3 of 1"]


def test_ranks_of_a_column_have_the_same_experts() -> None:
    names = texts(pictures.gradient_groups("Groups", 2, 2).axes[0])
    experts = [name for name in names if name.startswith("experts")]
    assert experts == 2 * ["experts of group 0", "experts of group 1"]


def test_ulysses_turns_rows_into_columns() -> None:
    outside, inside = (
        np.reshape([int(name) for name in texts(axes) if name.isdigit()], (4, 2))
        for axes in contexts.ulysses_layout("Ulysses", 2, 4).axes
    )  # (head, part of the tokens)
    assert (outside == [[0, 1]] * 4).all()
    assert (inside == [[0, 0], [0, 0], [1, 1], [1, 1]]).all()


def test_every_rank_meets_every_block() -> None:
    names = [n for n in texts(contexts.ring_steps("Ring", 3).axes[0]) if n.startswith("K")]
    blocks = np.reshape([int(name[1]) for name in names], (3, 3))
    assert (blocks == [[0, 2, 1], [1, 0, 2], [2, 1, 0]]).all()


def test_the_end_of_a_schedule() -> None:
    figure = contexts.timelines("Time", {"slow": ring_schedule(3, 1, 2)})
    assert texts(figure.axes[0]) == [" 5"]


def test_masks_and_steps_show_the_share_of_each_rank() -> None:
    contiguous, zigzag = contexts.masks("Masks", LAYOUTS).axes
    assert [text.get_text() for text in contiguous.get_legend().get_texts()] == [
        "rank 0: 30%",
        "rank 1: 70%",
    ]
    assert zigzag.get_legend().get_texts()[0].get_text() == "rank 0: 50%"
    contiguous, zigzag = contexts.step_work("Steps", LAYOUTS).axes
    assert contiguous.get_title() == "contiguous: 1.75 blocks in all"
    assert zigzag.get_title() == "zigzag: 1.25 blocks in all"
    heights = [bar.get_height() for bar in contiguous.patches]
    assert heights == [75, 0, 75, 100]


def test_lines_in_gigabytes_and_percent() -> None:
    (axes,) = contexts.memory("Memory", {"layer": {10: 2e9, 100: 20e9}}, 80e9).axes
    assert list(axes.lines[0].get_ydata()) == [2, 20]
    (axes,) = pictures.dropped_shares("Drops", {"even": {1.0: 0.25, 2.0: 0.0}}).axes
    assert list(axes.lines[0].get_ydata()) == [25, 0]
