"""A mesh of ranks, with the groups of each dimension."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from parlab.plots.look import NEUTRAL, ink, series, style
from parlab.plots.still import artist, subplots


def mesh_figure(
    title: str, mesh: Mapping[str, int], groups: Mapping[str, Sequence[Sequence[int]]]
) -> Figure:
    """Draw the ranks of a mesh as a block, and a line through the ranks of each group.

    The last dimension goes to the right, the one before it down, and the one before that back.

    Args:
        title: the figure's message.
        mesh: the sizes of one to three dimensions, from the outermost to the innermost.
        groups: by dimension, all its groups of ranks.

    Raises:
        ValueError: the mesh has more than three dimensions.
    """
    if len(mesh) > len("xyz"):
        raise ValueError(f"mesh has {len(mesh)} dimensions, and a figure shows at most 3")
    back, down, right = (*[1] * (3 - len(mesh)), *mesh.values())
    drawn, axis = subplots(title, figsize=(6.4, 1.2 + 1.1 * down + 0.5 * back))
    places = [
        ((0.75 * back + 0.7) * r + 0.7 * b, 0.55 * b - (0.55 * back + 0.6) * d)
        for b in range(back)
        for d in range(down)
        for r in range(right)
    ]
    # Start the colors at the innermost dimension, so that "tp" looks the same in most meshes.
    for i, dim in enumerate(reversed(mesh)):
        of_dim = groups.get(dim, ())
        for number, ranks in enumerate(of_dim):
            look = artist(series(i, f"{dim}: {_counted(of_dim)}")) | {"marker": "", "lw": 2.5}
            if number:
                look["label"] = None
            axis.plot(*zip(*(places[rank] for rank in ranks), strict=True), **look)
    for rank, (x, y) in enumerate(places):
        axis.plot(x, y, "o", markersize=24, color=style("compute").colour, zorder=3)
        text = {
            "ha": "center",
            "va": "center",
            "color": ink(style("compute").colour),
            "fontweight": "bold",
        }
        axis.text(x, y, rank, fontsize=12, zorder=4, **text)
    axis.margins(0.15)
    axis.axis("off")
    if groups:
        drawn.legend(
            loc="outside right center", frameon=False, handlelength=3.0, labelcolor=NEUTRAL
        )
    plt.close(drawn)
    return drawn


def _counted(groups: Sequence[Sequence[int]]) -> str:
    """Return the number of groups and their sizes, in words."""
    sizes = sorted({len(ranks) for ranks in groups})
    plural = "s" if len(groups) != 1 else ""
    return f"{len(groups)} group{plural} of " + " or ".join(map(str, sizes))
