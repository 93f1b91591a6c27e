"""Finding the names that a cell binds and reads."""

from parlab.runtime.source_code import bound_names, free_names, read_names

CELL = """
import a.b as c
from d import e
f = g(h)
def i(): pass
class J: pass
"""


def test_a_cell_binds_imports_assignments_and_definitions() -> None:
    assert bound_names(CELL) == {"c", "e", "f", "i", "J"}


def test_a_cell_reads_what_it_calls_and_passes() -> None:
    assert read_names(CELL) == {"g", "h"}


def test_an_error_that_except_names_is_the_cells_own() -> None:
    cell = "try: run(x)\nexcept ValueError as error: print(str(error))\n"
    assert free_names(cell) == {"run", "x", "ValueError", "print", "str"}


def test_code_that_only_parses_has_free_names_too() -> None:
    assert free_names("def add(a, b):\n    nonlocal total\n    total = a + b") == {"a", "b"}
