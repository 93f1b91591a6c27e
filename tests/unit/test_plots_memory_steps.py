"""The drawings of a step's memory show the recorded values."""

import torch

from parlab import memory
from parlab.plots.memory_steps import memory_over_time


def recorded(size: int) -> memory.History:
    with memory.History() as history:
        x = torch.ones(size)
        history.mark("middle")
        x.double().sum()
    return history


def test_a_line_for_each_run_with_its_peak_and_its_mark() -> None:
    histories = {"small": recorded(250_000), "large": recorded(500_000)}
    figure, axes = memory_over_time("Memory", histories, "middle")
    lines = [list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) > 1]
    assert [[round(y, 3) for y in line] for line in lines] == [[1, 3, 3], [2, 6, 6]]
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[1::2]]
    assert dots == [(0, 1), (0, 2)], "after the first operation"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["small: peak 3.0 MB", "large: peak 6.0 MB"]
