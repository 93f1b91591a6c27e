"""A lab's source is text with a number in its name, by which an author can select it."""

from pathlib import Path

import pytest

from tests.support.authoring_course import TinyCourse
from tests.support.authoring_problems import problems


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    return TinyCourse(tmp_path)


def test_a_source_that_is_not_text(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    course.source.write_bytes(b"# %%\nx = '\xff'\n")
    [printed] = problems(course, capsys)
    assert printed.startswith("solutions/01_adding.py:1: not UTF-8 text")


def test_a_source_of_another_name(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    (course.root / "solutions" / "adding.py").write_text("# %%\n1\n")
    assert problems(course, capsys) == [
        "solutions/adding.py:1: a lab's source is called NN_topic.py, as 01_mpi.py"
    ]


def test_an_unknown_lab_is_wrong_usage(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        course.build("07_triton")
    assert stopped.value.code == 2
    assert "there is no lab '07_triton'; the labs are: 01_adding" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["01_adding", "adding", "01", "labs/01_adding.ipynb"])
def test_a_lab_can_be_named_in_several_ways(name: str, course: TinyCourse) -> None:
    assert course.build(name, "--no-execute") == 0
    assert course.lab.exists()
