"""The mutants of a reference: operators, no duplicates, and identities that do not change."""

import ast

import pytest

from parlab.runtime.notebook import Cell
from parlab_staff.course.lab import Exercise
from parlab_staff.course.references import labs
from parlab_staff.mutants.generate import Mutant, mutants_of

REGION = "    # BEGIN SOLUTION\n{}\n    # END SOLUTION"


def mutants(body: str, signature: str = "f(x, comm)") -> list[Mutant]:
    """Return the mutants of a function with these lines as its solution."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = f"%%px\ndef {signature}:\n    given = 1\n{REGION.format(lines)}\n"
    cell = Cell("f", "code", source, {"exercise": "f", "tags": ["exercise"]})
    return mutants_of(cell)


def changes(body: str, operator: str, signature: str = "f(x, comm)") -> set[str]:
    """Return the added lines of the mutants of one operator."""
    found = [one for one in mutants(body, signature) if one.operator == operator]
    added = [[line[2:] for line in one.change.splitlines() if line[0] == "+"] for one in found]
    return {" | ".join(line.strip() for line in lines) for lines in added}


SHIFT = "comm.Sendrecv(x, dest=right, recvbuf=received, source=left)"


@pytest.mark.parametrize(
    ("operator", "body", "expected"),
    [
        ("constant", "return x[comm.rank + 1]", "return x[comm.rank + 2]"),
        ("comparison", "if comm.rank < 2:\n    x += x", "if comm.rank <= 2:"),
        ("condition", "if x:\n    x += x", "if not x:"),
        ("condition", "while x > 0:\n    x -= x", "if x > 0:"),
        ("condition", "return [y for y in x if y]", "return [y for y in x]"),
        ("logic", "return x and comm.rank", "return x or comm.rank"),
        ("arithmetic", "return (x + 1) % comm.size", "return x + 1"),
        ("other_name", "return comm.rank", "return comm.size"),
        ("other_name", "right, left = x, -x\nreturn right", "return left"),
        ("argument_dropped", "comm.Bcast(x, root=1)", "comm.Bcast(x)"),
        ("arguments_swapped", SHIFT, SHIFT.replace("right", "r").replace("left", "right")),
        ("unwrapped", "return list(reversed(x))", "return list(x)"),
        ("unwrapped", "return x.detach()", "return x"),
        ("copied", "return x.reshape(-1)", "return x.copy().reshape(-1)"),
        ("dtype", "return np.empty_like(x)", "return np.empty(x.shape)"),
        ("sliced", "return x[comm.rank:comm.size]", "return x[comm.rank:]"),
        ("mean_or_sum", "return F.cross_entropy(x, x)", "return F.cross_entropy(x, x, reduction='sum')"),  # noqa: E501
        ("global_generator", "return torch.Generator().manual_seed(3)", "return torch.manual_seed(3)"),  # noqa: E501
        ("statement_twice", "x += 1\nreturn x", "x += 1"),
        ("one_rank_only", "comm.Barrier()", "if comm.rank == 0: | comm.Barrier()"),
        ("loop_short", "for y in x:\n    y.wait()", "for y in list(x)[1:]:"),
        ("without_context", "with x:\n    comm.Barrier()", "comm.Barrier()"),
        ("returned", "return x, comm", "return (comm, x)"),
        ("in_place", "x.grad *= comm.size", "x.grad = x.grad * comm.size"),
        ("in_place", "x[...] = comm.size", "x = comm.size"),
        ("other_communicator", "comm.Barrier()", "MPI.COMM_SELF.Barrier()"),
        ("pickled", "comm.Bcast(x)", "comm.bcast(x)"),
        ("not_waited", "comm.Send(x, dest=1)", "comm.Isend(x, dest=1)"),
        ("send_for_receive", "comm.Send(x, dest=1)", "comm.Recv(x, source=1)"),
        ("one_after_the_other", SHIFT, "comm.Send(x, dest=right) | comm.Recv(received, source=left)"),  # noqa: E501
        ("other_reduction", "comm.Allreduce(x, x)", "comm.Allreduce(x, x, op=MPI.MAX)"),
        ("mean_for_sum", "return comm.allreduce(x)", "return comm.allreduce(x) / comm.size"),
        ("other_collective", "return comm.allreduce(x)", "return comm.bcast(x)"),
        ("last_rank_is_root", "comm.Bcast(x, root=0)", "comm.Bcast(x, root=comm.size - 1)"),
    ],
)  # fmt: skip
def test_operators(operator: str, body: str, expected: str) -> None:
    if operator == "arguments_swapped":
        expected = SHIFT.replace("right", "_").replace("left", "right").replace("_", "left")
    assert expected in changes(body, operator)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("statement_dropped", "  given = 1\n- x.sort()"),
        ("statements_swapped", "  given = 1\n+ comm.Barrier()\n  x.sort()\n- comm.Barrier()"),
        ("moved_out", "-     y.close()\n+ y.close()"),
        ("moved_in", "  x.sort()\n- comm.Barrier()\n  for y in x:\n+     comm.Barrier()"),
    ],
)
def test_moved_lines_are_shown_with_what_is_around_them(operator: str, expected: str) -> None:
    body = "x.sort()\ncomm.Barrier()\nfor y in x:\n    y.wait()\n    y.close()"
    assert expected in [one.change for one in mutants(body) if one.operator == operator]


def test_only_the_solution_changes() -> None:
    for one in mutants("return x + 1"):
        assert "given = 1" in one.code
        assert one.code.startswith("def f(x, comm):")


def test_mutants_differ_from_each_other_and_from_the_reference() -> None:
    # `x + 0` and `x - 0` differ; `return None` and no return at all do not.
    found = mutants("return x + 1")
    assert len({one.code for one in found}) == len(found)
    assert [one.operator for one in found].count("returned") == 0
    assert not mutants("pass")


def test_changes_that_fail_at_once_are_no_mutants() -> None:
    dropped = changes("y = x + 1\nreturn y", "statement_dropped")
    assert dropped == {""}  # `return y`, and not the line that makes y
    assert not changes("y = x + 1\nreturn y", "statements_swapped")


def test_the_same_change_at_two_places_is_two_mutants() -> None:
    found = [one for one in mutants("x += 1\ncomm.Barrier()\nx += 1") if "x += 2" in one.change]
    assert [one.occurrence for one in found] == [1, 2]
    assert len({one.identity for one in found}) == 2


def test_attributes_added_to_syntax_trees_are_not_copied() -> None:
    """IPython adds attributes to nodes that all trees share, for every cell that raises."""

    class Uncopied:
        def __deepcopy__(self, memo: dict) -> None:
            pytest.fail("it is copied with the tree")

    shared = ast.parse("x").body[0].value.ctx
    shared.parent = Uncopied()
    try:
        assert mutants("x = y + 1")
    finally:
        del shared.parent


# The first exercise of each lab; `make test-all` tries the others, too.
FIRST = [lab.keys[0] for lab in labs()]


@pytest.mark.parametrize(
    "exercise",
    [
        pytest.param(one, id=one.key, marks=[] if one.key in FIRST else [pytest.mark.nightly])
        for lab in labs()
        for one in lab.exercises
    ],
)
def test_every_exercise_has_mutants_that_can_be_found_again(exercise: Exercise) -> None:
    found = mutants_of(exercise.cell)
    assert len(found) >= 5
    assert len({one.identity for one in found}) == len(found)
    assert [one.identity for one in mutants_of(exercise.cell)] == [one.identity for one in found]
