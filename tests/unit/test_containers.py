"""The files that build and start containers fit together, and a handout contains them."""

import subprocess
import sys
from pathlib import Path

import yaml

from parlab.runtime.paths import ROOT
from parlab_staff.release import write_handout

COMPOSE = ROOT / "compose.yaml"
SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]


def test_compose_accepts_its_file() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [program, "--builtin-schema", "vendor.compose-spec", COMPOSE]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout


def test_what_a_learner_writes_is_kept_outside_the_container() -> None:
    for service in SERVICES.values():
        image = (ROOT / service["build"]["dockerfile"]).read_text()
        (volume,) = service["volumes"]
        folder = volume.partition(":")[2]  # `parlab lab` copies the labs to ~/parlab
        assert folder == "/home/learner/parlab" and f"--owner=learner {folder}\n" in image
        assert "\nUSER 1000\n" in image, "root can write to the course"


def test_students_get_the_containers(tmp_path: Path) -> None:
    handout = write_handout("01_mpi", tmp_path / "handout")
    for name in ("compose.yaml", ".dockerignore", "containers/parlab.def"):
        assert (handout / name).read_bytes() == (ROOT / name).read_bytes()
    for service in SERVICES.values():
        assert (handout / service["build"]["dockerfile"]).is_file()
