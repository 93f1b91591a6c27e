"""A grader removes the folders of killed graders, and no others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab_staff.grading import run


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_folders_of_killed_graders_are_removed(gone: int, tmp_path: Path) -> None:
    left = tmp_path / f"{run.PREFIX}{gone}-{run._machine()}-x"
    (left / "door" / "deep").mkdir(parents=True)
    (left / "door").chmod(0o500)
    run.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_removed(gone: int, tmp_path: Path) -> None:
    """On a shared machine, any user can create one there."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "secret").touch(mode=0o400)
    link = tmp_path / f"{run.PREFIX}{gone}-{run._machine()}-x"
    link.symlink_to(target)
    run.remove_leftovers(tmp_path)
    assert link.is_symlink() and os.stat(target / "secret").st_mode & 0o777 == 0o400


def test_folders_of_running_graders_are_kept(tmp_path: Path) -> None:
    running_now = tmp_path / f"{run.PREFIX}{os.getpid()}-{run._machine()}-x"
    running_now.mkdir()
    run.remove_leftovers(tmp_path)
    assert running_now.is_dir()


def test_folders_of_graders_on_other_machines_are_kept(gone: int, tmp_path: Path) -> None:
    """The folder for temporary files can be that of a cluster."""
    elsewhere = tmp_path / f"{run.PREFIX}{gone}-0ther0-x"
    elsewhere.mkdir()
    run.remove_leftovers(tmp_path)
    assert elsewhere.is_dir()
