"""Serves the course's files to JupyterLab, and adds the learner's progress to the start page."""

import re
from pathlib import Path
from typing import Any

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from parlab import progress

_SECTION = """
## What you have done

{table}

When a check passes, it is recorded here. Open this page again to update it.

"""
# The place for the progress. The text between the marks is replaced each time the page is read.
_PLACE = re.compile(r"(<!-- progress -->\n).*?(<!-- end -->)", re.DOTALL)


class Labs(AsyncLargeFileManager):
    """Serves the unchanged files of a folder, but adds the learner's progress to start pages."""

    async def get(self, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        model = await super().get(path, *args, **kwargs)
        file = Path(self._get_os_path(path))
        if file.name == progress.START_PAGE and isinstance(model.get("content"), str):
            model["content"] = with_progress(model["content"], file.parent)
        return model


def with_progress(page: str, folder: Path) -> str:
    """Return the start page's text with the table of progress in `folder`."""
    section = _SECTION.format(table=progress.table(folder))
    return _PLACE.sub(lambda place: place[1] + section + place[2], page)
