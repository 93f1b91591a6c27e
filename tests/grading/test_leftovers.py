"""Folders of graders that were killed: the next one removes its own, and touches no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab_staff.grading import run


@pytest.fixture
def gone() -> int:
    """A process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_what_a_killed_grader_left_is_removed(gone: int, tmp_path: Path) -> None:
    left = tmp_path / f"{run.PREFIX}{gone}-x"
    (left / "door" / "deep").mkdir(parents=True)
    (left / "door").chmod(0o500)
    run.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_nobodys_folder(gone: int, tmp_path: Path) -> None:
    """On a shared machine anybody can put one there."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "secret").touch(mode=0o400)
    link = tmp_path / f"{run.PREFIX}{gone}-x"
    link.symlink_to(target)
    run.remove_leftovers(tmp_path)
    assert link.is_symlink() and os.stat(target / "secret").st_mode & 0o777 == 0o400


def test_what_lives_is_left_alone(tmp_path: Path) -> None:
    running_now = tmp_path / f"{run.PREFIX}{os.getpid()}-x"
    running_now.mkdir()
    run.remove_leftovers(tmp_path)
    assert running_now.is_dir()
