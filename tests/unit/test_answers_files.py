"""Answers in `tests/answers`, and answers in your own file for `parlab try KEY my_file.py`."""

from pathlib import Path

import pytest

from parlab.runtime.notebook import Cell
from parlab_staff.answers import answers
from parlab_staff.answers.collected import answer_in
from parlab_staff.course.lab import Exercise, Lab


def test_an_answers_file_uses_its_own_functions_before_the_labs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def encode_half(x):\n    return decode_half(int(x))\n")
    assert answer_in(file, "encode_half").make()(0x3C00) == 1.0
    file.write_text(f"def decode_half(bits):\n    return -bits\n\n\n{file.read_text()}")
    assert answer_in(file, "encode_half").make()(3) == -3


def test_a_file_must_define_the_exercises_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def encode_haf(x):\n    return 0\n")
    with pytest.raises(ValueError, match="does not define encode_half"):
        answer_in(file, "encode_half").make()


@pytest.mark.parametrize(("old", "times"), [("return", "2 times"), ("no such code", "0 times")])
def test_an_edit_names_one_place(old: str, times: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("", "code", "def f(x):\n    if x:\n        return x\n    return -x", {})
    monkeypatch.setattr(answers, "exercise_of", lambda key: Exercise(Lab(Path("00_x.py")), cell))
    with pytest.raises(ValueError, match=f"f/slip: '{old}' is {times} in the reference"):
        answers.Answers("f").edit(None, "slip", (old, "pass"))
