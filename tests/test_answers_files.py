"""An answer from a file of one's own, as `parlab try KEY my_file.py` reads it."""

from pathlib import Path

from parlab.answers.collected import answer_in


def test_a_file_has_the_labs_other_functions_and_its_own_before_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def encode_half(x):\n    return decode_half(int(x))\n")
    assert answer_in(file, "encode_half").make()(0x3C00) == 1.0
    file.write_text(f"def decode_half(bits):\n    return -bits\n\n\n{file.read_text()}")
    assert answer_in(file, "encode_half").make()(3) == -3
