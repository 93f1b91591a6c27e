"""What the error of a rank's cell says about an error that was being handled."""

from parlab.rank.engine import tracebacks


def shown(code: str) -> str:
    """Return the text that is shown for the error of a cell with this code."""
    try:
        exec(compile(code, "/tmp/ipykernel_1/2.py", "exec"), {})
    except Exception as error:
        return "\n".join(tracebacks._structured_traceback(type(error), error, error.__traceback__))
    raise AssertionError("the code raises no error")


def test_an_error_of_the_cell_that_was_being_handled_is_shown() -> None:
    text = shown("try:\n    {}['mine']\nexcept KeyError:\n    1 / 0")
    assert "while handling KeyError: 'mine' (line 2)" in text


def test_an_error_that_a_library_raised_and_caught_is_not_shown() -> None:
    """An interrupt can arrive while `Path.exists`, for example, handles FileNotFoundError."""
    library = "try:\n    {}['theirs']\nexcept KeyError:\n    1 / 0"
    text = shown(f"exec(compile({library!r}, '/usr/lib/library.py', 'exec'))")
    assert "ZeroDivisionError" in text and "handling" not in text
