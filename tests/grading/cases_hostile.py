"""Code that attacks the grading. It solves no exercise, so any points are a defect."""

from pathlib import Path

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(ring_shift=3, ring_all_gather=4, ring_reduce_scatter=4, ring_all_reduce=3)

FIRST = "exercise-ring_shift"


def wrong(copy: Copy, attack: str) -> None:
    """Give one answer, which fails by itself, and run `attack` before it."""
    copy.stubs()
    copy.answer("ring_shift", "%%px\ndef ring_shift(x, comm):\n    return 1 / 0\n")
    copy.insert(attack, before=FIRST)


@case("failed", 0)
def input_transformer(copy: Copy, path: Path) -> None:
    """It replaces every check's cell with one that prints that the check passed."""
    wrong(
        copy,
        """\
def harmless(lines):
    text = "".join(lines)
    for key in ("ring_shift", "ring_all_gather", "ring_reduce_scatter", "ring_all_reduce"):
        if f"check.{key}(" in text:
            return [f"print('✓ {key}: verified')\\n"]
    return lines
get_ipython().input_transformers_cleanup.insert(0, harmless)
""",
    )


@case("failed", 0)
def patched_builtins(copy: Copy, path: Path) -> None:
    wrong(
        copy,
        """\
%%px
import builtins
builtins.AssertionError = type("AssertionError", (Exception,), {})
builtins.any = lambda values: False
builtins.all = lambda values: True
""",
    )


@case("failed", 0, notes="the check passed")
def patched_checks(copy: Copy, path: Path) -> None:
    wrong(
        copy,
        """\
%%px
from parlab.checks import mpi as check
for key in ("ring_shift", "ring_all_gather", "ring_reduce_scatter", "ring_all_reduce"):
    setattr(check, key, lambda f, key=key: print(f"✓ {key}: verified"))
""",
    )


@case("failed", 0, notes="the check passed")
def patched_failures(copy: Copy, path: Path) -> None:
    """The checks run, but their methods that report a failure do nothing."""
    wrong(
        copy,
        """\
%%px
from parlab.checks.base.check import Check
from parlab.checks.base.trial import Trial
for kind, name in [(Check, "fail"), (Trial, "fail"), (Check, "agree"), (Trial, "require")]:
    setattr(kind, name, lambda *given, **named: None)
""",
    )


@case("failed", 0, notes="displayed")
def repeated_results(copy: Copy, path: Path) -> None:
    """It displays several guesses for every value."""
    wrong(
        copy,
        """\
%%px
from IPython.display import JSON, display
from parlab.checks import mpi as check
def guesses(**values):
    for guess in (None, 0, [[20, 21, 22], [0, 1, 2], [10, 11, 12]]):
        display(JSON({"received": guess, "x": guess, "chunk": guess, "mean": "2.0000"}))
if guesses:
    check.show_values = guesses
""",
    )
    copy.answer("ring_shift", "%%px\ndef ring_shift(x, comm):\n    return x\n")
    copy.answer("ring_all_reduce", "%%px\ndef ring_all_reduce(x, comm):\n    return 1 / 0\n")


@case("failed", 0)
def forged_replies(copy: Copy, path: Path) -> None:
    """It forges the kernel's replies, so that every cell is ok and every check passes."""
    wrong(
        copy,
        """\
kernel = get_ipython().kernel
send = kernel.session.send
def forged(stream, kind, content=None, *args, **kwargs):
    if kind == "execute_reply" and isinstance(content, dict):
        content = {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}
    if kind == "error":
        kind, content = "stream", {"name": "stdout", "text": "✓ ring_shift: verified\\n"}
    return send(stream, kind, content, *args, **kwargs)
kernel.session.send = forged
""",
    )


@case("failed", 0)
def deep_results(copy: Copy, path: Path) -> None:
    """It displays deeply nested values, which could overflow a reader's stack."""
    wrong(
        copy,
        """\
%%px
from IPython.display import display
from parlab.checks import mpi as check
def deep(**values):
    data = {"received": None}
    for _ in range(900): data = {"received": [data]}
    display({"application/json": data, "text/plain": "x"}, raw=True)
if deep:
    check.show_values = deep
""",
    )


def wins_with(copy: Copy, look: str) -> None:
    """Run `look` on the ranks, which adds to `found`. If it finds anything, an exercise is right.

    The exercise is also right if `look` does not run to its end, because it then has not looked
    everywhere.
    """
    start = 'import os, socket, sys\nfound = ["it did not come to its end"]\n'
    wrong(copy, f"%%px --timeout 80\n{start}{look}found.pop(0)\n")
    head, _, body = copy.reference("ring_shift").partition('left one."""\n')
    guard = "    if not found:\n        return None\n"
    copy.answer("ring_shift", f'{head}left one."""\n{guard}{body}')


@case("failed", 0)
def reads_the_solution(copy: Copy, path: Path) -> None:
    """It searches for solutions, other submissions, and the grader's files everywhere."""
    course = copy.lab.path.parents[1]
    wins_with(
        copy,
        f"""\
places = [{str(course)!r}, {str(path.parent)!r}, os.getcwd(), "/proc/1/root", "/proc/1/cwd", "/"]
for place in places:
    for folder, below, files in os.walk(place):
        if folder.removeprefix("/proc/1/root") in ("/proc", "/sys", "/usr", sys.prefix):
            below.clear()
        else:
            found += [f"{{folder}}/{{file}}" for file in files if file.endswith(".ipynb")]
import parlab
beside = os.listdir(f"{{parlab.__path__[0]}}/..")
found += [name for name in beside if name in ("parlab_staff", "solutions", "tests")]
try:
    import parlab_staff
    found += list(parlab_staff.__path__)
except ImportError:
    pass
""",
    )


@case("failed", 0)
def looks_around(copy: Copy, path: Path) -> None:
    """It looks for other processes and their environments, and for ways out of the sandbox."""
    wins_with(
        copy,
        """\
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        text = open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read()
    except OSError:
        continue
    found += [text for word in ("pytest", "PARLAB_TEST_SECRET", "limiter") if word in text]
for address in (("1.1.1.1", 53), ("10.0.0.1", 80)):
    try:
        found.append(socket.create_connection(address, timeout=2))
    except OSError:
        pass
places = ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"]
places += ["/etc/x", "/usr/x", "/x", "/dev/x", os.path.dirname(os.__file__) + "/x"]
for place in places:
    try:
        open(place, "a").close()
        found.append(place)
    except OSError:
        pass
""",
    )


@case("died", 0, ring_shift="not_reached", ring_all_gather="missing",
      ring_reduce_scatter="missing", ring_all_reduce="missing")  # fmt: skip
def kills_the_parent(copy: Copy, path: Path) -> None:
    wrong(
        copy,
        """\
import os, signal
for pid in (os.getppid(), -1, 1):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        print(error)
os._exit(1)
""",
    )


@case("failed", 0)
def writes_results(copy: Copy, path: Path) -> None:
    """It writes results and events to the places where the grader stores them."""
    wrong(
        copy,
        f"""\
import glob, os
for folder in ({str(path.parent)!r}, "/tmp", *glob.glob("/tmp/parlab-grade-*/door")):
    for name in ("results/x/result.json", "events.jsonl", "../events.jsonl", "run.json"):
        try:
            os.makedirs(os.path.dirname(f"{{folder}}/{{name}}"), exist_ok=True)
            open(f"{{folder}}/{{name}}", "w").write('{{"event": "end", "cell": "x"}}')
        except OSError as error:
            print(error)
""",
    )


@case("failed", 0, student='=HYPERLINK("x") <script>alert(1)<x>')
def markup(copy: Copy, path: Path) -> None:
    """Its outputs, errors, and name contain HTML, scripts, terminal sequences, and formulas."""
    wrong(copy, "print('\\x1b[2J\\x1b]0;pwned\\x07<script>alert(2)</script>')")
    text = "=cmd|x <script>alert(3)</script> \\x1b[31mred \\x00 ```\\n# heading"
    copy.answer("ring_shift", f"%%px\ndef ring_shift(x, comm):\n    raise ValueError('{text}')\n")


@case("failed", 0, says="import")
def tells_the_hidden_checks(copy: Copy, path: Path) -> None:
    """It records every cell that runs, and shows them in the error of a later check."""
    wrong(
        copy,
        """\
%%px
told = []
def remember(lines):
    told.append("".join(lines))
    return lines
get_ipython().input_transformers_cleanup.insert(0, remember)
""",
    )
    telling = "def ring_all_reduce(x, comm):\n    raise ValueError('\\n'.join(told))\n"
    copy.answer("ring_all_reduce", f"%%px\n{telling}")


@case("passed", case.all)
def harmless_neighbor(copy: Copy, path: Path) -> None:
    """It is a right submission that is graded together with the attacks."""
