"""The folders that JupyterLab and its kernels write to, outside of the course."""

import os
from pathlib import Path

from parlab.runtime.writable import why_not


def problem() -> str:
    """Return which folders cannot be written to, and what to do, or "" if all are writable."""
    from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir

    folders = [jupyter_config_dir(), jupyter_data_dir(), jupyter_runtime_dir()]
    folders += [os.environ[name] for name in ("IPYTHONDIR",) if os.environ.get(name)]
    found = dict.fromkeys(filter(None, map(why_not, map(Path, folders))))
    if not found:
        return ""
    return (
        f"JupyterLab cannot write its settings ({'; '.join(found)}). Make room or allow writing "
        "there, or choose another folder: `HOME=$(mktemp -d) make lab`"
    )
