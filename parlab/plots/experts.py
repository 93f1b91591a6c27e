"""The load of experts while a model learns."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.plots.look import ramp
from parlab.plots.still import subplots


def expert_load(title: str, panels: Mapping[str, Sequence[Sequence[float]]]) -> tuple[Any, Any]:
    """Draw each expert's share of the tokens over the training steps, as stacked bands.

    In each panel, the expert that is most popular at the end is at the bottom.

    Args:
        title: the picture's message.
        panels: by title, the shares of all experts in each step, which add up to 1.

    Returns:
        matplotlib's figure and its axes, in a row.
    """
    drawn, axes = subplots(title, 1, len(panels), sharey=True, squeeze=False, figsize=(8.4, 3.6))
    for panel, (name, steps) in zip(axes[0], panels.items(), strict=True):
        experts = sorted(zip(*steps, strict=True), key=lambda shares: -sum(shares[-20:]))
        colors = ramp(len(experts))
        panel.stackplot(range(len(steps)), experts, colors=colors, edgecolor="white", lw=0.5)
        panel.set(title=name, xlabel="step", xlim=(0, len(steps) - 1), ylim=(0, 1))
    axes[0, 0].set_ylabel("share of the tokens (each band is one expert)")
    return drawn, axes[0]
