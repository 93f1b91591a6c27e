"""Answers that return values of the wrong kind, and code that changes the lab's own values."""

from pathlib import Path

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)


# Values of the wrong kind


def returns(copy: Copy, expression: str) -> None:
    copy.answer("add", f"%%px\ndef add(a, b):\n    return {expression}\n")


@case("partial", case.without("add"), add="failed")
def not_a_number(copy: Copy, path: Path) -> None:
    returns(copy, "float('nan')")


@case("partial", case.without("add"), add="failed")
def wrong_shape(copy: Copy, path: Path) -> None:
    returns(copy, "[[a + b]]")


@case("partial", case.without("add"), add="failed")
def complex_numbers(copy: Copy, path: Path) -> None:
    returns(copy, "a + b + 1j")


@case("partial", case.without("add"), add="failed", notes="the check passed")
def equal_to_all(copy: Copy, path: Path) -> None:
    """It returns a value that claims to equal any other."""
    copy.answer(
        "add",
        "%%px\nclass Liar(int):\n    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 0\n"
        "def add(a, b):\n    return Liar(0)\n",
    )


# The lab's own values


@case("partial", case.without("add"), add="failed", notes="assigns to show_units")
def assigns_to_what_the_lab_imports(copy: Copy, path: Path) -> None:
    """It replaces `show_units`, which the hidden check calls to show values."""
    copy.insert("%%px\nshow_units = lambda number: '26 bytes'", before="exercise-add")
    copy.answer("add", "%%px\ndef add(a, b):\n    return 1\n")


@case("passed", case.all, notes="assigns to show_units")
def assigns_without_gain(copy: Copy, path: Path) -> None:
    """It assigns to names of the lab, which get their values back before each check."""
    copy.insert("%%px\nshow_units = None", before="exercise-add")


@case("passed", case.all, notes="assigns to show_units.fine")
def assigns_an_attribute(copy: Copy, path: Path) -> None:
    copy.insert("%%px\nshow_units.fine = 1\none = 1", before="exercise-add")
    copy.answer("add", copy.reference("add").replace("a + b", "a + b * one"))


EXEC = "calls exec(…), which can assign to the lab's names"


@case("partial", case.without("add"), add="failed", notes=EXEC)
def assigns_by_a_text(copy: Copy, path: Path) -> None:
    copy.insert("%%px\nexec(\"show_units = lambda number: '26 bytes'\")", before="exercise-add")
    copy.answer("add", "%%px\ndef add(a, b):\n    return 1\n")


@case("passed", case.all)
def assigns_unseen(copy: Copy, path: Path) -> None:
    """It assigns to names of the lab in a way that the grader cannot find in its code."""
    copy.insert("%%px\nrun = exec\nrun('show_units = None')", before="exercise-add")
    copy.answer("add", "%%px\nshow_units(1)\n" + copy.reference("add").removeprefix("%%px\n"))


@case("passed", case.all, notes="assigns to show_units")
def assigns_in_a_line(copy: Copy, path: Path) -> None:
    copy.insert("%px show_units = None", before="exercise-add")


@case("passed", case.all, notes="assigns to show_units")
def assigns_an_error(copy: Copy, path: Path) -> None:
    source = "%%px\ntry:\n    1 / 0\nexcept ZeroDivisionError as show_units:\n    pass"
    copy.insert(source, before="exercise-add")


@case("passed", case.all, notes="assigns to parlab.units.fine, units.fine")
def assigns_where_it_comes_from(copy: Copy, path: Path) -> None:
    """It assigns to an attribute of the lab's module. The grader does not run the assignment."""
    source = "%%px\nimport parlab.units\nfrom parlab import units\n"
    source += "parlab.units.fine = 1\nunits.fine = 1"
    copy.insert(source, before="exercise-add")


@case("passed", case.all, says="calls cluster.start(2)", notes="calls cluster.start(2)")
def other_ranks(copy: Copy, path: Path) -> None:
    """It starts another number of ranks, which the last hidden check would show."""
    copy.insert("cluster.start(2)", before="exercise-add")


@case("passed", case.all, says="calls cluster.start(2)")
def other_ranks_above_a_long_line(copy: Copy, path: Path) -> None:
    copy.insert("cluster.start(2)\nrest = (\n    7\n    % 2\n)", before="exercise-add")


@case("passed", case.all)
def local_names(copy: Copy, path: Path) -> None:
    """Its local variables and parameters have names of the lab."""
    copy.answer("add", "%%px\ndef add(a, b):\n    show_units = a\n    return show_units + b\n")


@case("partial", 3, says="It builds on total, which is not right", notes="because of total",
      total="error", mean="failed")  # fmt: skip
def builds_on_what_is_wrong(copy: Copy, path: Path) -> None:
    copy.answer("total", "%%px\ndef total(values)\n    return sum(values)\n")
