"""Every lab for the grader: which answers earn nothing, and which exercises use others."""

from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT, numbered
from parlab_staff.grading import no_op_answers
from parlab_staff.grading.compare import right_at
from parlab_staff.grading.graded_lab import find_lab
from parlab_staff.grading.run import Limits, run

# Hidden checks that call functions of other exercises. A student who gets those wrong also loses
# points here, and the feedback names the cause. Add one only if a check cannot avoid the call.
BUILDS_ON = {
    "04_tensor_parallel": {
        "parallel_gpt": {"vocabulary_cross_entropy"},
        "sequence_parallel_gpt": {"vocabulary_cross_entropy"},
    },
    "05_pipeline_parallel": {
        "naive_step": {"split_model"},
        "pipeline": {"split_model"},
    },
    "06_mixed_precision": {
        "scaled_step": {"master_weights"},
        "mixed_step": {"loss_scaler", "master_weights"},
        "sharded_master_weights": {"loss_scaler"},
    },
}
PATHS = numbered(ROOT / "solutions", ".ipynb")
LABS = [pytest.param(path, id=path.stem) for path in PATHS]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", LABS)
def test_an_answer_that_does_nothing_earns_nothing(path: Path) -> None:
    """Each hidden check has values that differ for `return None` and `return` of an argument.

    `tests/ranks/test_stubs.py` tries this without the sandbox.
    """
    lab = find_lab(path.stem)
    ran = run(no_op_answers.notebook(lab), Limits(cell_seconds=120, seconds=550), "bwrap")
    assert not ran.broken and not ran.ended, ran
    found = no_op_answers.worthless(lab, ran)
    for exercise in lab.exercises:
        for number in range(len(no_op_answers.answers(lab.stub_of(exercise)))):
            assert ran.cells[f"nothing-{number}-{exercise.cell}"].outcome == "ok"
            for check in exercise.hidden:
                assert ran.cells[f"nothing-{number}-{check}"].outcome in ("ok", "error"), check
        assert not no_op_answers.nothing_left(exercise, found), exercise.key
        for check, (_, expected) in exercise.hidden.items():
            assert right_at(expected, ran.cells[check].json[0]), "the reference ran as well"
            assert all(right_at(expected, ran.cells[check].json[0]).values()), check


@pytest.mark.parametrize("path", LABS)
def test_a_hidden_check_calls_no_other_exercises_functions(path: Path) -> None:
    """A mistake should cost points only once. `BUILDS_ON` lists the exceptions."""
    lab = find_lab(path.stem)
    found = {e.key: {k for cell in e.hidden for k in lab.builds_on[cell]} for e in lab.exercises}
    others = {key: keys - {key} for key, keys in found.items() if keys - {key}}
    assert others == BUILDS_ON.get(path.stem, {}), "let it do without, or add it to BUILDS_ON"
    calling = [key for key, keys in found.items() if key in keys]
    assert len(calling) == len(lab.exercises), "each calls its own: so calls are seen"
