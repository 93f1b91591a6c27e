"""The course's settings for JupyterLab.

overrides.json contains the settings, and custom/ the styles. contents.py adds the learner's
progress to the start page.
"""

import os
import sys
from pathlib import Path

from parlab import progress

SETTINGS = Path(__file__).parent
START_PAGE = f"labs/{progress.START_PAGE}"


def command(root: Path, *options: str) -> list[str]:
    """Return the command that serves the folder `root`, and opens the list of labs.

    overrides.json sets defaults: text opens rendered, and no pop-up asks about news. A user's own
    settings replace them. `options` are passed to JupyterLab. If a JupyterHub starts this, the
    server belongs to one of its users.
    """
    program = "jupyterhub.singleuser" if "JUPYTERHUB_API_TOKEN" in os.environ else "jupyterlab"
    return [
        *(sys.executable, "-m", program),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        f"--LabApp.default_url=/lab/tree/{START_PAGE}",
        "--ServerApp.contents_manager_class=parlab.setup.jupyterlab.contents.Labs",
        "--LabApp.custom_css=True",
        f"--ServerApp.tornado_settings=static_custom_path={SETTINGS / 'custom'}",
        # JupyterLab refuses root without this option, but many containers have no other user.
        *(["--allow-root"] if os.geteuid() == 0 else []),
        *options,
    ]
