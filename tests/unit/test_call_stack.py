"""The position of a thread: its lines, even in files and functions with unusual names."""

import threading
from pathlib import Path

from parlab.checks.base.call_stack import CodeLine, calls_of

NAMES = ["plain", "grün", "雪", "\N{SNOWMAN} \N{GRINNING FACE}"]


def test_calls_are_listed_from_the_innermost_one_on(tmp_path: Path) -> None:
    for name in NAMES:
        file = str(tmp_path / f"{name}.py")
        waits, may_end = threading.Event(), threading.Event()
        given = {"waits": waits, "may_end": may_end}
        code = "\ndef größe():\n    waits.set()\n    may_end.wait()\n\ndef outer():\n    größe()\n"
        exec(compile(code, file, "exec"), given)
        thread = threading.Thread(target=given["outer"])
        thread.start()
        assert thread.ident is not None and waits.wait(60)
        while not (own := [call for call in calls_of(thread.ident) if call.file == file]):
            pass
        may_end.set()
        thread.join()
        assert [call.function for call in own] == ["größe", "outer"]
        assert own[0].number in (3, 4) and own[1] == CodeLine(file, 7, "outer")
        assert calls_of(thread.ident) == []
