"""What the outputs of a lab come from, besides its own code: the package.

When it changes, stored outputs may be out of date, and `make notebooks` runs the labs again. That
is not for `--check` to decide, which the tests call: nbval runs every solution there and compares
what it prints with what is stored, and an edit of a comment in parlab must not turn the tests red.
"""

from collections.abc import Collection
from pathlib import Path

from parlab.authoring.notebooks import digest

# Rooms of the package that show nothing in a notebook.
WITHOUT_OUTPUT = {
    "answers", "authoring", "book", "doctor", "gradebook", "grading", "handout", "mutation",
}  # fmt: skip


def package_digest(root: Path, without: Collection[str] = ()) -> str:
    """Fingerprint of all modules of the package in the checkout `root`, but for some rooms."""
    package = root / "parlab"
    modules = [path.relative_to(package) for path in sorted(package.rglob("*.py"))]
    kept = [module for module in modules if module.parts[0] not in without]
    return digest([[module.as_posix(), (package / module).read_text("utf-8")] for module in kept])
