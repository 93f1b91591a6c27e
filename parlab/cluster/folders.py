"""The folder of one set of ranks: what controller and ranks write goes in there, and with them."""

import os
import tempfile
from pathlib import Path

from IPython.paths import get_ipython_dir

from parlab.cluster.errors import ClusterError


def make_folder(profile: str | None) -> Path:
    """A new folder: for temporary files, or inside the profile's, which other nodes see as well.

    Raises ClusterError where it cannot be made, or there is no such profile.
    """
    inside = profile and _existing(profile)
    _check_temporary()
    try:
        folder = Path(tempfile.mkdtemp(prefix="parlab-", dir=inside))
    except OSError as error:
        else_ = "" if inside else ": set TMPDIR to one with space in it"
        raise ClusterError(f"no folder for temporary files ({error}){else_}") from None
    for settings in inside.glob("*_config.py") if inside else ():
        (folder / settings.name).symlink_to(settings)
    return folder


def _check_temporary() -> None:
    """Python takes another folder where it cannot write into TMPDIR; Open MPI ends."""
    wanted = os.environ.get("TMPDIR", "")
    if os.path.isdir(wanted) and not os.path.samefile(wanted, tempfile.gettempdir()):
        raise ClusterError(
            f"nothing can be written into TMPDIR, {wanted}: it is full, or not yours. Make some "
            "space, or set TMPDIR to another folder."
        )


def _existing(profile: str) -> Path:
    """The profile's own folder. ipyparallel would make an empty one where there is none."""
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
