"""A fingerprint of the modules on which the outputs of a lab, or a score, depend.

When the package changes, stored outputs may be out of date, and `make notebooks` runs the labs
again. `make notebooks ARGS=--check`, which the tests call, ignores this fingerprint, because
editing a comment in parlab must not fail the tests. They run every solution with nbval and compare
what it prints with what is stored.
"""

from collections.abc import Iterator
from pathlib import Path

from parlab_staff.notebooks.make import digest

# A folder of parlab that has no influence on what a notebook shows.
WITHOUT_OUTPUT = "setup"


def package_digest(root: Path, *also: str) -> str:
    """Return the fingerprint of all modules of `parlab` in the checkout `root`.

    Args:
        root: the checkout.
        also: more folders whose modules count, relative to `root`.
    """
    package = root / "parlab"
    modules = [p for p in _modules(package) if p.relative_to(package).parts[0] != WITHOUT_OUTPUT]
    for folder in also:
        modules += _modules(root / folder)
    return digest(
        [[path.relative_to(root).as_posix(), path.read_text("utf-8")] for path in modules]
    )


def _modules(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.rglob("*.py")))
