"""The workflows are valid and safe, and their steps are scripts that anyone can run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parlab.runtime.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent


def check(*command: str | Path) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_workflows_follow_githubs_schema() -> None:
    assert len(WORKFLOWS) >= 3
    schema = ("--builtin-schema", "vendor.github-workflows")
    check(BIN / "check-jsonschema", *schema, *WORKFLOWS)


def test_workflows_are_safe() -> None:
    check(BIN / "zizmor", "--offline", "--quiet", ROOT / ".github" / "workflows")


@pytest.mark.parametrize("workflow", [pytest.param(path, id=path.stem) for path in WORKFLOWS])
def test_a_step_runs_a_script_of_the_course(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job.get("steps", []) if "run" in step]
    for command in commands:
        script = ROOT / command.split()[0]
        assert re.match(r"\.ci/[\w-]+( |$)", command), command
        assert os.access(script, os.X_OK), command


@pytest.mark.parametrize("arguments", [[], ["teacher"], ["full", "student"]], ids=" ".join)
def test_the_publishing_script_names_the_editions(arguments: list[str]) -> None:
    script = ROOT / ".ci" / "publish"
    ran = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "usage: .ci/publish full|student\n")
