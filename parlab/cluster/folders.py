"""Makes the folders of one set of ranks, in which the controller and the ranks write files.

The folders are deleted when the ranks end.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from IPython.paths import get_ipython_dir

from parlab.cluster.errors import ClusterError
from parlab.runtime.paths import MEMORY

# Bytes that must be free. Eight ranks write 0.2 MiB when they start, and later any errors.
ROOM = 2 * 2**20
# Python and Open MPI take the folder for temporary files from the first of these that is set.
TEMPORARY = ("TMPDIR", "TEMP", "TMP")
ELSEWHERE = ", or set TMPDIR to another folder"


def make_folder(profile: str | None) -> Path:
    """Make a new folder and return it.

    It is in the folder for temporary files, or in the profile's folder, which other nodes can read.
    Raises ClusterError if the folder cannot be made, or if the profile does not exist.
    """
    inside = profile and _existing(profile)
    _check_temporary()
    place = Path(tempfile.gettempdir())
    try:
        _check_room(place)
        place = inside or place
        _check_room(place)
        folder = Path(tempfile.mkdtemp(prefix="parlab-", dir=place))
    except OSError as error:
        raise ClusterError(
            f"cannot write to {place}, where ranks may need {ROOM // 2**20} MiB "
            f"({error.strerror}). Free some space{'' if place == inside else ELSEWHERE}."
        ) from None
    for settings in inside.glob("*_config.py") if inside else ():
        (folder / settings.name).symlink_to(settings)
    return folder


def make_memory_folder() -> Path | None:
    """Make a new folder whose files are only in memory, for messages between ranks.

    Returns None if this machine has no place for it. Open MPI then chooses another place.
    """
    with contextlib.suppress(OSError):
        return MEMORY and Path(tempfile.mkdtemp(prefix="parlab-", dir=MEMORY))


def _check_temporary() -> None:
    """Raise ClusterError if the folder for temporary files is not writable.

    Python would silently choose another folder, but Open MPI would end.
    """
    named = [(name, path) for name in TEMPORARY if (path := os.environ.get(name))]
    name, wanted = named[0] if named else ("the folder for temporary files", "/tmp")
    tempfile.tempdir = None  # look again, because a cell may have set TMPDIR
    try:
        usable = tempfile.gettempdir()
    except FileNotFoundError:  # Python finds no other writable folder either
        usable = ""
    if not usable or (os.path.isdir(wanted) and not os.path.samefile(wanted, usable)):
        raise ClusterError(
            f"cannot write into {name}, {wanted}: it is full, or it is not yours. Free some "
            f"space{ELSEWHERE}."
        )


def _check_room(folder: Path) -> None:
    """Raise OSError if the file system or a quota has too little room."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(ROOM))


def _existing(profile: str) -> Path:
    """Return the profile's folder, or raise ClusterError if there is no such profile.

    Without this check, ipyparallel would make an empty profile.
    """
    everywhere = Path(get_ipython_dir())
    folder = everywhere / f"profile_{profile}"
    if folder.is_dir():
        return folder
    names = (found.name.removeprefix("profile_") for found in everywhere.glob("profile_*/"))
    raise ClusterError(
        f"no ipyparallel profile {profile!r} in {everywhere}; there are: "
        f"{', '.join(map(repr, sorted(names))) or 'none'}. `parlab profile --help` says how to "
        "write one."
    )
