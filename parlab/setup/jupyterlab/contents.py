"""Serves the course's files to JupyterLab, and shows the learner's progress on the start page."""

import re
from pathlib import Path
from typing import Any

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from parlab import progress

# The link to a lab. If someone saved the page as JupyterLab shows it, a bar follows.
_LINK = re.compile(r"(\[[^\]]+\]\((\d\d_\w+\.ipynb)\))(?: [■□]+\s\d+\sof\s\d+)?")


class Labs(AsyncLargeFileManager):
    """Serves the unchanged files of a folder, but shows the learner's progress on start pages."""

    async def get(self, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        model = await super().get(path, *args, **kwargs)
        file = Path(self._get_os_path(path))
        if file.name == progress.START_PAGE and isinstance(model.get("content"), str):
            model["content"] = with_progress(model["content"], file.parent)
        return model


def with_progress(page: str, folder: Path) -> str:
    """Return the start page's text with a bar after the link to each lab in `folder`."""
    bars = {
        lab.path.name: " " + f"{lab.bar} {lab.count}".replace(" ", "\N{NO-BREAK SPACE}")
        for lab in progress.labs(folder)
    }
    return _LINK.sub(lambda link: link[1] + bars.get(link[2], ""), page)
