"""The course's files as JupyterLab gets them: the start page tells what is done already."""

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
# Where the page takes that. What stands between the two is replaced each time it is read.
_PLACE = re.compile(r"(<!-- progress -->\n).*?(<!-- end -->)", re.DOTALL)


class Labs(AsyncLargeFileManager):
    """Files of a folder, as they are; but a start page has the learner's progress put in."""

    async def get(self, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        model = await super().get(path, *args, **kwargs)
        file = Path(self._get_os_path(path))
        if file.name == progress.START_PAGE and isinstance(model.get("content"), str):
            model["content"] = with_progress(model["content"], file.parent)
        return model


def with_progress(page: str, folder: Path) -> str:
    """The start page's text with the table of what is done in `folder` in its place."""
    section = _SECTION.format(table=progress.table(folder))
    return _PLACE.sub(lambda place: place[1] + section + place[2], page)
