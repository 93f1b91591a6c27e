"""Gives each learner a folder of their own if the course's folder is read-only."""

import os
from pathlib import Path

LINKED = ("book", "examples", "solutions")  # labs and pages link to files in these folders


def own_folder(course: Path) -> Path:
    """Return the folder whose `labs/` this user can save.

    If the course's own labs cannot be saved, this is `~/parlab`. Labs that are not there yet are
    copied to it. Raises ValueError with what to do if that fails.
    """
    if os.access(course / "labs", os.W_OK):
        return course
    own = Path.home() / "parlab"
    try:
        (own / "labs").mkdir(parents=True, exist_ok=True)
        for path in sorted((course / "labs").iterdir()):
            if path.is_file() and not path.name.startswith("."):
                _copy(path, own / "labs" / path.name)
        for name in LINKED:
            _link(own / name, course / name)
    except OSError as error:
        raise ValueError(
            f"{course / 'labs'} is read-only, and the labs cannot be copied to {own} "
            f"({error.strerror}). Make room or allow writing there, or choose another folder: "
            "`HOME=$(mktemp -d) parlab lab`"
        ) from None
    return own


def _copy(path: Path, copy: Path) -> None:
    """Copy a file, but never replace a file that exists."""
    try:
        target = open(copy, "xb")  # noqa: SIM115, only this call may find that the file exists
    except FileExistsError:
        return
    try:
        with target:
            target.write(path.read_bytes())
    except BaseException:
        copy.unlink()  # only a part of it was written: the disk is full, or Ctrl-C
        raise


def _link(link: Path, folder: Path) -> None:
    """Link to a folder of the course. Replace a link only if its folder has moved."""
    if link.is_symlink() and not link.exists():
        link.unlink()
    if folder.is_dir() and not os.path.lexists(link):
        link.symlink_to(folder)
