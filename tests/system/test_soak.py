"""Random rank cells: nothing goes wrong for two minutes, and real faults are reported."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.soak import run
from tests.soak.cell import Cell
from tests.soak.cells import random_cell
from tests.soak.run import Soak
from tests.soak.watch import Gain

DAY = int(time.time()) // 86_400  # another seed each day


@pytest.fixture(scope="module")
def soak() -> Iterator[Soak]:
    soak = Soak(seed=0)
    yield soak
    soak.close()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("clock")
def test_two_minutes_of_random_cells_violate_nothing() -> None:
    command = [sys.executable, "-m", "tests.soak", "2", "--seed", str(DAY)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " cells, 0 violations" in ended.stdout


VIOLATIONS = {
    "it ended after": Cell("%%px\ntime.sleep(1)", ends_within=-100),
    "it does not show": Cell("%%px\nprint('this')", shows="that"),
    "it raised UsageError": Cell("%%px --targets 9\n1"),
    "an error of Python's": Cell("%%px\nprint('Traceback (most recent call last):')"),
    "variables are lost, though": Cell(
        "%%px --timeout 1\nimport itertools\nsum(itertools.count())", ends_within=1
    ),
    "does not say why variables are lost": Cell("%%px\ndel held", keeps=False),
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", VIOLATIONS)
def test_a_violation_is_reported(soak: Soak, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    soak.violations.clear()
    soak.step(VIOLATIONS[what])
    assert any(what in violation.what for violation in soak.violations), soak.violations
    assert "repeat: python -m tests.soak 1 --seed 0 --first 0" in capsys.readouterr().out


# For each kind of leftover: how it is reported, cells that create it, and a cell that removes it.
LEFT = {
    "1 × other: sleep 1000": (
        ["import subprocess\nleft = subprocess.Popen(['sleep', '1000'])"],
        "left.kill()\nleft.wait()",
    ),
    "1 × left": (
        [
            "import pathlib, tempfile\nleft = pathlib.Path(tempfile.gettempdir(), 'left')\n"
            "left.touch()"
        ],
        "left.unlink()",
    ),
    "/dev/shm/soak-": (
        [
            "import mmap, tempfile\nfile, name = tempfile.mkstemp(dir='/dev/shm', prefix='soak-')\n"
            "os.truncate(file, 4096)\nleft = mmap.mmap(file, 4096)",
            "left.close()\nos.close(file)",
        ],
        "os.unlink(name)",
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", LEFT)
def test_what_a_cell_leaves_is_reported(
    soak: Soak, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.0)
    leave, remove = LEFT[what]
    for code in leave:
        soak.step(cell := Cell(f"%%px --targets 0\n{code}"))
    soak.violations.clear()
    soak.check_leftovers(cell)
    assert what in soak.violations[-1].what
    soak.step(Cell(f"%%px --targets 0\n{remove}"))
    soak.violations.clear()
    soak.check_leftovers(cell)
    assert not soak.violations


def test_a_cell_depends_only_on_the_seed_and_its_number() -> None:
    cells = [random_cell(5, number) for number in range(300)]
    assert cells == [random_cell(5, number) for number in range(300)]
    assert len({cell.kind for cell in cells}) > 20
    assert cells != [random_cell(6, number) for number in range(300)]


def test_what_grows_with_each_cell_is_too_much() -> None:
    assert Gain("rank", "threads", 0.02, {"a": [1.0] * 10 + [0.0] * 10}).is_too_much
    assert not Gain("rank", "threads", 0.02, {"a": [1.0, -1.0] * 10, "b": [0.0]}).is_too_much
