"""Small labs for the tests of `make gpu-check`, and the cells that they consist of."""

import json
from pathlib import Path
from typing import Any

SET_UP = "import torch\nfrom parlab.rank import comm, device, group, rank, world_size"
VALUES = "from parlab.checks import words as check\ncheck.show_values(x=rank * 2)"


def cell(id: str, source: str, *, tags: str = "", outputs: Any = (), magic: str = "%%px") -> Any:
    return {
        "cell_type": "code",
        "id": id,
        "metadata": {"tags": tags.split(), "exercise": id},
        "source": f"{magic}\n{source}" if magic else source,
        "outputs": list(outputs),
    }


def stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": [text]}


def shows(**values: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"application/json": values}, "metadata": {}}


def notebook(path: Path, *cells: Any) -> Path:
    local = cell("start", "raise SystemExit('the notebook itself does not run')", magic="")
    setup = cell("set-up", SET_UP)
    path.write_text(json.dumps({"cells": [local, setup, *cells]}), encoding="utf-8")
    return path
