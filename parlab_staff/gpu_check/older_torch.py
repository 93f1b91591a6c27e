"""Finds what an older version of torch lacks, so that the cells that need it are skipped."""

import re

from parlab.runtime.paths import ROOT

# Names of functions in torch 2.13, and their earlier names.
NEWER_NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
# Python's errors about a missing module of torch, or a missing name in one.
_LACKING = (
    r"No module named '(?P<module>torch\.[\w.]+)'",
    r"module '(?P<module>torch[\w.]*)' has no attribute '(?P<name>\w+)'",
    r"cannot import name '(?P<name>\w+)' from '(?P<module>torch[\w.]*)'",
)


def rename() -> list[str]:
    """Add the names of torch 2.13 for functions of an older torch. Return a note for each."""
    import torch
    import torch.distributed as dist

    notes = []
    for new, old in NEWER_NAMES.items():
        if not hasattr(dist, new):
            setattr(dist, new, getattr(dist, old))
            notes.append(f"torch {torch.__version__} calls dist.{new} {old}: put in place")
    return notes


def why_lacking(error: BaseException) -> str:
    """Return what an older version of torch lacks; "" if that did not cause the error."""
    import torch

    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    course = re.search(r"^torch==([\d.]+)", lock, re.MULTILINE)
    assert course, "requirements.txt names the version of torch"
    # A check that fails because of this error quotes it.
    missing = next((found for text in _LACKING if (found := re.search(text, str(error)))), None)
    if missing is None or _numbers(torch.__version__) >= _numbers(course[1]):
        return ""
    name = ".".join(part for part in (missing["module"], missing.groupdict().get("name")) if part)
    return f"torch {torch.__version__} has no {name}, which torch {course[1]} has"


def _numbers(version: str) -> list[int]:
    """Return [2, 13, 0] for `2.13.0+cpu`."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
