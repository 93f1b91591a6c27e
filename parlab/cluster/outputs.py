"""Shows what ranks printed and displayed, in rank order. Equal outputs are shown once."""

import json
import os
import sys
import time

from IPython import get_ipython
from IPython.display import clear_output, display

from parlab.cluster.ending import errors_by_rank
from parlab.cluster.replies import Replies
from parlab.cluster.report import labelled
from parlab.cluster.stop_button import StopButton
from parlab.runtime.rank_names import by_value, ranks_text

OUTPUT_SECONDS = 10.0


class Progress:
    """Shows how long a cell has been running, and what it printed last.

    This text is removed when the cell ends, so that the stored output is the same on every run.
    """

    AFTER_SECONDS = 3.0

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.start = time.monotonic()
        self.shown = False
        # nbval also compares output that was cleared.
        tested = os.environ.get("IPP_NONINTERACTIVE") or "PYTEST_CURRENT_TEST" in os.environ
        self.watched = hasattr(get_ipython(), "kernel") and not tested

    def __call__(self, replies: Replies, note: str = "") -> None:
        """Show which ranks are running, which have failed, and `note`."""
        seconds = time.monotonic() - self.start
        if seconds < self.AFTER_SECONDS or not self.watched:
            return
        limit = f" of {self.timeout:g} s" if seconds <= self.timeout else ""
        lines = [f"{seconds:.0f} s{limit}, {ranks_text(replies.running() or [0])}"]
        lines[0] += f"  {replies.last_line()[:100]}"
        for rank, (message, _) in errors_by_rank(replies, {}).items():
            lines.append(f"{ranks_text([rank])} failed: {message.splitlines()[0][:100]}")
        clear_output(wait=True)
        print("\n".join([*lines, note] if note else lines))
        self.shown = True

    def clear(self) -> bool:
        """Remove the text. Return True if this also removed what the cell had shown before."""
        if self.shown:
            clear_output()
        return self.shown


def printed(replies: Replies, stop: StopButton) -> dict[int, dict]:
    """Wait for the outputs of a cell that has ended, and return them by rank.

    Outputs and answers arrive over different connections, so outputs may arrive later.
    """
    replies.on_output(stop.notify)
    stop.wait_for(replies.has_all_output, OUTPUT_SECONDS)
    return replies.outputs()


def show(metadata: dict[int, dict], world_size: int) -> None:
    """Print and display the outputs of a rank cell."""
    for stream, file in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        texts = {rank: meta[stream] for rank, meta in metadata.items() if meta[stream]}
        for group, text in by_value(texts):
            print(labelled(text, group, world_size, stream == "stdout"), file=file)
    displayed = max((len(meta["outputs"]) for meta in metadata.values()), default=0)
    for position in range(displayed):
        _show_data(
            {
                rank: meta["outputs"][position]
                for rank, meta in metadata.items()
                if position < len(meta["outputs"])
            },
            world_size,
        )
    _show_data(
        {rank: meta["execute_result"] for rank, meta in metadata.items() if meta["execute_result"]},
        world_size,
    )


def _show_data(bundles: dict[int, dict], world_size: int) -> None:
    groups = by_value({rank: json.dumps(b["data"], sort_keys=True) for rank, b in bundles.items()})
    for group, _ in groups:
        bundle = bundles[group[0]]
        if set(bundle["data"]) == {"text/plain"}:
            print(labelled(bundle["data"]["text/plain"], group, world_size))
            continue
        if world_size > 1:
            print(f"[{ranks_text(group, world_size)}]")
        display(bundle["data"], metadata=bundle.get("metadata") or {}, raw=True)
