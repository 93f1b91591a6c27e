"""Every lab, as the grader meets it: what is worth nothing, and what builds on what."""

from pathlib import Path

import pytest

from parlab.files import ROOT, numbered
from parlab.grading import doing_nothing
from parlab.grading.comparing import right_at
from parlab.grading.lab import find_lab
from parlab.grading.running import Limits, run

# Hidden checks that call functions of other exercises: who gets those wrong loses points here too,
# and is told "because of". Each is a decision: where a check can do without, it does.
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
LABS = [pytest.param(path, id=path.stem) for path in numbered(ROOT / "solutions", ".ipynb")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", LABS)
def test_an_answer_that_does_nothing_earns_nothing(path: Path) -> None:
    """Each hidden check has values that tell an answer from `return None` and an identity."""
    lab = find_lab(path.stem)
    ran = run(doing_nothing.notebook(lab), Limits(cell_seconds=120, seconds=550), "bwrap")
    assert not ran.broken and not ran.ended, ran
    found = doing_nothing.worthless(lab, ran)
    for exercise in lab.exercises:
        for number in range(len(doing_nothing.answers(lab.stub_of(exercise)))):
            assert ran.cells[f"nothing-{number}-{exercise.cell}"].outcome == "ok"
            for check in exercise.hidden:
                assert ran.cells[f"nothing-{number}-{check}"].outcome in ("ok", "error"), check
        assert not doing_nothing.nothing_left(exercise, found), exercise.key
        for check, (_, expected) in exercise.hidden.items():
            assert right_at(expected, ran.cells[check].json[0]), "the reference ran as well"
            assert all(right_at(expected, ran.cells[check].json[0]).values()), check


@pytest.mark.parametrize("path", LABS)
def test_a_hidden_check_calls_no_other_exercises_functions(path: Path) -> None:
    """But for those that are decided on: one slip is paid for once."""
    lab = find_lab(path.stem)
    found = {e.key: {k for cell in e.hidden for k in lab.builds_on[cell]} for e in lab.exercises}
    others = {key: keys - {key} for key, keys in found.items() if keys - {key}}
    assert others == BUILDS_ON.get(path.stem, {}), "let it do without, or add it to BUILDS_ON"
    calling = [key for key, keys in found.items() if key in keys]
    assert len(calling) == len(lab.exercises), "each calls its own: so calls are seen"
