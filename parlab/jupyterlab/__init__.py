"""JupyterLab as the course wants it; overrides.json holds its settings."""

import os
import sys
from pathlib import Path

SETTINGS = Path(__file__).parent
START_PAGE = "labs/START.md"


def command(root: Path, *options: str) -> list[str]:
    """The command line that serves the folder `root`; it opens on the list of labs there.

    Text opens rendered and no pop-up asks for news: see overrides.json, which are defaults that a
    user's own settings replace. `options` are JupyterLab's.
    """
    return [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        f"--LabApp.default_url=/lab/tree/{START_PAGE}",
        # JupyterLab refuses root unless told; many containers have no other user.
        *(["--allow-root"] if os.geteuid() == 0 else []),
        *options,
    ]
