"""If the course's folder is read-only, `parlab lab` opens a copy of the labs in the user's home."""

import json
import subprocess
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT
from parlab.setup import jupyterlab
from tests.unit.test_doctor_surroundings import PARLAB, finding, isolated, on_own_machine

# Root may write to a folder without write permission, but not to one that is mounted read-only.
READ_ONLY = f"mount --bind {ROOT} {ROOT}; mount -o remount,bind,ro {ROOT}"
LABS = {path.name: path.read_bytes() for path in (ROOT / "labs").iterdir() if path.is_file()}


def open_labs(home: Path, first: str = READ_ONLY) -> subprocess.CompletedProcess[str]:
    """Run `parlab lab` with this home, so that JupyterLab prints its settings and ends."""
    return on_own_machine(first, str(PARLAB), "lab", "--show-config-json", HOME=str(home))


@isolated
def test_labs_are_copied_once_and_opened_from_the_copy(tmp_path: Path) -> None:
    own = tmp_path / "parlab"
    (own / "labs").mkdir(parents=True)
    (own / "labs" / "01_mpi.ipynb").write_text("my answers")
    (own / "book").symlink_to("a-course-that-has-moved")
    ran = open_labs(tmp_path)
    note = f"parlab lab: {ROOT} is read-only, so your labs are in {own}/labs"
    assert ran.stderr.splitlines()[0] == note
    settings = json.loads(ran.stdout)["ServerApp"]
    assert (settings["root_dir"], settings["preferred_dir"]) == (str(own), str(own / "labs"))
    copied = {path.name: path.read_bytes() for path in (own / "labs").iterdir()}
    assert copied == LABS | {"01_mpi.ipynb": b"my answers"}
    assert (own / "book").resolve() == ROOT / "book"


@isolated
def test_a_home_without_room_is_reported_and_gets_no_part_of_a_file(tmp_path: Path) -> None:
    copies = f"{tmp_path}/parlab/labs"
    small = f"mount -t tmpfs -o size=150k none {tmp_path}"  # enough for one or two labs
    list_files = f"{PARLAB} lab; cd {copies} && stat --format='%n %s' *; exit 1"
    command = ("sh", "-c", list_files)
    ran = on_own_machine(f"{READ_ONLY}; {small}", *command, HOME=str(tmp_path))
    assert ran.stderr == (
        f"parlab: {ROOT / 'labs'} is read-only, and the labs cannot be copied to {tmp_path}/parlab "
        "(No space left on device). Make room or allow writing there, or choose another folder: "
        "`HOME=$(mktemp -d) parlab lab`\n"
    )
    copied = dict(line.split() for line in ran.stdout.splitlines())
    assert copied and copied == {name: str(len(LABS[name])) for name in copied}


@isolated
def test_a_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parlab").touch()
    ran = open_labs(tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"parlab: {ROOT / 'labs'} is read-only, and the labs cannot be")
    assert "(Not a directory)" in ran.stderr and ran.stderr.count("\n") == 1


@isolated
def test_the_doctor_says_where_labs_will_be() -> None:
    found = finding("disk", READ_ONLY)
    assert found["found"] == f"{ROOT / 'labs'} is read-only"
    assert "copies the labs to ~/parlab" in found["meaning"]


def test_a_jupyterhub_gets_the_server_of_one_of_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN", raising=False)
    assert jupyterlab.command(tmp_path)[1:3] == ["-m", "jupyterlab"]
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    assert jupyterlab.command(tmp_path)[1:3] == ["-m", "jupyterhub.singleuser"]
