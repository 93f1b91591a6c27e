"""Answers that do nothing, and return None, zeros, or their argument, earn no points."""

import pytest

from parlab_staff.grading import no_op_answers
from parlab_staff.grading.compare import right_at
from parlab_staff.grading.match import match
from parlab_staff.grading.no_op_answers import answers
from parlab_staff.grading.rebuild import build
from parlab_staff.grading.score import score
from parlab_staff.grading.self_test import NOTHING, ProofFailed, prove
from tests.grading.copies import Copy
from tests.grading.plain_lab import InProcess, in_process_lab

STUB = '''\
%%px
class Sampler:
    def __init__(self, data, rank):
        raise NotImplementedError("exercise sampler: not done yet")

    def __len__(self):
        raise NotImplementedError("exercise sampler: not done yet")


def shift(x, comm):
    """Send `x` on."""
    if comm.size > 1:
        raise NotImplementedError("exercise sampler: not done yet")
    return x
'''


def test_answers_are_made_from_the_stub() -> None:
    none, first, zeros, zero = answers(STUB)
    assert none.count("return None") == 3 and "raise" not in first
    assert first.count("return None") == 2 and first.count("return x") == 2
    assert zeros.count("return x * 0") == 1 and zeros.count("return None") == 2
    assert zero.count("return 0") == 1 and zero.count("return x") == 1
    assert none.count("\n") == STUB.count("\n")
    assert answers("def shift(x, comm):\n    return x\n") == []


@pytest.mark.parametrize("body", ["return None", "return values"])
def test_values_that_an_empty_answer_shows_earn_nothing(body: str) -> None:
    """The hidden check displays the count of numbers for any answer."""
    grader = InProcess(in_process_lab())
    hidden = "hidden-check-total"
    worthless = prove(grader, jobs=1)
    assert worthless[hidden] == {("count",)}
    copy = Copy(grader.lab).answer("total", f"%%px\ndef total(values):\n    {body}\n")
    matched = match(grader.lab, copy.notebook)
    ran = grader.run("student", build(grader.lab, matched))
    [(_, expected)] = next(e for e in grader.lab.exercises if e.key == "total").hidden.values()
    [shown] = ran.cells[hidden].json
    assert any(right_at(expected, shown).values()), "a value is right without an answer"
    total = next(e for e in score(grader.lab, matched, ran, worthless) if e.key == "total")
    assert total.points == 0


@pytest.mark.parametrize("body", ["return 0", "return values * 0"])
def test_zeros_earn_nothing(body: str) -> None:
    """Some of the right values are zero."""
    lab = in_process_lab()
    sources = {
        "exercise-total": "def total(values):\n    return values % 2\n",
        "hidden-check-total": "import numpy as np\n"
        "many = total(np.array([2, 3, 4]))\n"
        "check.show_values(many=np.asarray(many).tolist(), one=total(4), two=total(3))",
    }
    for cell in lab.solution.cells:
        if cell.id in sources:
            cell.source = f"%%px\n{sources[cell.id]}"
        if cell.id == "hidden-check-total":
            cell.outputs[0].data["application/json"] = {"many": [0, 1, 0], "one": 0, "two": 1}
    grader = InProcess(lab)
    ran = grader.run(NOTHING, no_op_answers.notebook(lab))
    found = no_op_answers.worthless(lab, ran)
    assert found["hidden-check-total"] == {("many", 0), ("many", 2), ("one",)}
    copy = Copy(lab).answer("total", f"%%px\ndef total(values):\n    {body}\n")
    matched = match(lab, copy.notebook)
    ran = grader.run("student", build(lab, matched))
    total = next(e for e in score(lab, matched, ran, found) if e.key == "total")
    assert total.points == 0


def test_a_lab_that_gives_points_for_doing_nothing_is_refused() -> None:
    lab = in_process_lab()
    for cell in lab.solution.cells:
        if cell.id == "hidden-check-total":
            cell.source = "%%px\ncheck.show_values(of_one=total(7))"
            cell.outputs[0].data["application/json"] = {"of_one": 7}
        if cell.id == "exercise-total":
            cell.source = "%%px\ndef total(values):\n    return sum(values) if values != 7 else 7\n"
    with pytest.raises(ProofFailed, match="total: an answer that does nothing shows all values"):
        prove(InProcess(lab), jobs=1)
