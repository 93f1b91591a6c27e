"""The book's legend of colors and hatches, from `parlab.plots`."""

from parlab.plots import ROLES, Style

_GROUPS = {
    "A rank's time": ("compute", "communication", "idle"),
    "A rank's memory": ("parameters", "gradients", "optimizer_states", "activations"),
    "A comparison": ("reference", "library", "model"),
}
_STROKES = {"/": "M0 8L8 0", "\\": "M0 0L8 8", ".": "M3.2 4a.8.8 0 1 0 1.6 0a.8.8 0 1 0-1.6 0"}


def legend_html() -> str:
    """Return an HTML list of what each color means; the swatches are inline SVG."""
    groups = []
    for title, roles in _GROUPS.items():
        items = "".join(f"<li>{_swatch(ROLES[role])}{ROLES[role].label}</li>" for role in roles)
        groups.append(f"<div><strong>{title}</strong><ul>{items}</ul></div>")
    return f'<div class="colour-key">{"".join(groups)}</div>'


def _swatch(style: Style) -> str:
    stroke = _STROKES.get(style.pattern, "")
    width, height = 32, 16
    marks = "".join(
        f'<path d="{stroke}" transform="translate({x} {y})"/>'
        for x in range(0, width, 8)
        for y in range(0, height, 8)
        if stroke
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<rect width="{width}" height="{height}" rx="2" fill="{style.colour}"/>'
        f'<g stroke="#fff" stroke-opacity="0.65" fill="#fff">{marks}</g></svg>'
    )
