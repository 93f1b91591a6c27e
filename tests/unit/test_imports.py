"""Rules for the packages: their allowed imports, and the size of modules and functions."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

from parlab.runtime.paths import ROOT
from parlab_staff.course.references import labs

LONGEST_FILE, LONGEST_FUNCTION = 300, 60

FOLDERS = ("parlab", "parlab_staff", "tests", "examples", "benchmarks")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
ANSWERS = ROOT / "tests" / "answers"  # all answers to an exercise are in one file


def test_packages_import_only_what_is_allowed() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_check_imports_the_check_of_another_exercise() -> None:
    graph = grimp.build_graph("parlab", cache_dir=None)
    exercises = {f"parlab.checks.{topic}.{key}" for topic, key in exercises_by_topic()}
    found = {
        (importer.removeprefix("parlab.checks."), exercise.removeprefix("parlab.checks."))
        for exercise in exercises
        for importer in graph.find_modules_that_directly_import(exercise)
        if importer != exercise.rpartition(".")[0]  # the topic lists its checks
    }
    assert not found


def exercises_by_topic() -> Iterator[tuple[str, str]]:
    """Yield (topic, exercise) for every exercise."""
    for lab in labs():
        for key in lab.keys:
            yield lab.topic, key


def test_files_and_functions_are_short() -> None:
    files, functions = set(), set()
    for module in MODULES:
        name, text = module.relative_to(ROOT).as_posix(), module.read_text(encoding="utf-8")
        if text.count("\n") > LONGEST_FILE and ANSWERS not in module.parents:
            files.add(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION:
                    functions.add(f"{name}:{node.name}")
    assert not files
    assert not functions
