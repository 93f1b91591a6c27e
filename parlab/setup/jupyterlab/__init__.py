"""JupyterLab as the course wants it.

overrides.json holds its settings, custom/ the style of what it shows, contents.py puts what is done
into the start page.
"""

import os
import sys
from pathlib import Path

from parlab import progress

SETTINGS = Path(__file__).parent
START_PAGE = f"labs/{progress.START_PAGE}"


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
        "--ServerApp.contents_manager_class=parlab.setup.jupyterlab.contents.Labs",
        "--LabApp.custom_css=True",
        f"--ServerApp.tornado_settings=static_custom_path={SETTINGS / 'custom'}",
        # JupyterLab refuses root unless told; many containers have no other user.
        *(["--allow-root"] if os.geteuid() == 0 else []),
        *options,
    ]
