"""Wrong answers that leave state in their process, in which a right answer cannot work.

Each kind is handed in twice: with the wrong answer before the right one, and after it. Both answers
get the same points as alone. The exercise `mean` is not done.
"""

from pathlib import Path
from textwrap import indent

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)

# The code of the wrong answer, which leaves state, and the code of the right answer that needs it.
LEFT: dict[str, tuple[str, str]] = {
    "an_ended_process": ("import os\nos._exit(3)", ""),
    "an_endless_loop_in_c": (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nimport itertools\n"
        "sum(itertools.count())",
        "",
    ),
    "threads": (
        # A check calls the function several times, and 1,024 threads are one too many.
        "import threading, time\n"
        "while threading.active_count() < 300:\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "import threading\nassert threading.active_count() < 100",
    ),
    "hooks": ("import builtins\nbuiltins.sum = lambda values: 7", "assert sum([1, 2]) == 3"),
    "seeds": (
        "import random\nrandom.setstate((3, (0,) * 624 + (624,), None))",
        "import random\n1 / random.random()",
    ),
    "environment": ("import os\nos.environ.clear()", "import os\nos.environ['HOME']"),
    "a_folder": ("import os\nos.chdir('/')", "open('scratch', 'w').close()"),
    "settings": (
        "import warnings\nwarnings.simplefilter('error')",
        "import warnings\nwarnings.warn('the values are few')",
    ),
    "open_files": (
        "import builtins, os, resource\n"
        "builtins.kept = [os.open('/dev/null', 0) for _ in range(900)]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))",
        "import os\nfor file in [os.open('/dev/null', 0) for _ in range(300)]: os.close(file)",
    ),
    "memory": (
        "import builtins\nif not hasattr(builtins, 'kept'):\n"
        "    builtins.kept = bytearray(b'1') * (250 * 2**20)",
        "import time\nlarge = bytearray(b'1') * (250 * 2**20)\ntime.sleep(0.5)\ndel large",
    ),
}


def answer(copy: Copy, key: str, first: str) -> None:
    """Answer with the reference, after the line `first`."""
    source = copy.reference(key)
    head, _, body = source.partition('."""\n')
    copy.answer(key, f'{head}."""\n{indent(first, "    ")}\n{body}')


def wrong(copy: Copy, key: str, first: str) -> None:
    copy.answer(key, f"def {key}(*arguments):\n{indent(first, '    ')}\n    return -1\n")


def _add(name: str, leaves: str, needs: str) -> None:
    def before(copy: Copy, path: Path) -> None:
        wrong(copy, "add", leaves)
        answer(copy, "total", needs)
        copy.stub("mean")

    def after(copy: Copy, path: Path) -> None:
        answer(copy, "add", needs)
        wrong(copy, "total", leaves)
        copy.stub("mean")

    ends = {"an_ended_process": "died", "an_endless_loop_in_c": "timeout"}.get(name, "failed")
    for build, is_wrong, is_right in ((before, "add", "total"), (after, "total", "add")):
        build.__name__ = f"{build.__name__}_{name}"
        expected = {is_wrong: ends, "mean": "missing"}
        case("partial", case.points[is_right], **expected)(build)


for _name, (_leaves, _needs) in LEFT.items():
    _add(_name, _leaves, _needs)
