"""The files of other projects in the playground are the ones that their registries have."""

import json
import shutil
from pathlib import Path

import pytest

from parlab_staff.play import bundle
from parlab_staff.play.pyodide import write_pyodide
from parlab_staff.play.vendor import fetch


def test_vendored_files_have_the_recorded_hashes() -> None:
    fetch.verify()


@pytest.mark.parametrize("name", [fetch.TARBALL.name, fetch.numpy_entry()["file_name"]])
def test_a_changed_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in fetch.FOLDER.glob("*.*"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(fetch, "FOLDER", tmp_path)
    monkeypatch.setattr(fetch, "TARBALL", tmp_path / fetch.TARBALL.name)
    fetch.verify()
    changed = tmp_path / name
    changed.write_bytes(changed.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=changed.name):
        fetch.verify()


def test_python_is_written_into_a_folder_named_after_its_contents(tmp_path: Path) -> None:
    name = write_pyodide(tmp_path)
    assert name.startswith("pyodide-0.27.7-")
    assert write_pyodide(tmp_path) == name
    lock = json.loads((tmp_path / name / "pyodide-lock.json").read_text("utf-8"))
    assert list(lock["packages"]) == ["numpy"]
    assert sum(file.stat().st_size for file in (tmp_path / name).iterdir()) < 10_000_000


def test_the_bundle_has_what_the_checks_import_and_no_torch() -> None:
    files = bundle.python_files()
    assert files["parlab/checks/mpi/ring_shift.py"].startswith('"""Exercise `ring_shift`')
    assert "_hub" in files["parlab/checks/base/deadlock.py"], "the page's own version"
    assert "parlab/checks/base/late_group.py" not in files
    assert not [name for name, text in files.items() if "\nimport torch\n" in text]
