"""Exercise `predict_kept`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import require_numbers
from parlab.costs.tensor_parallel import block_in_numbers

MISTAKES = Mistakes(
    elements="{name}: this counts numbers. A float32 number takes 4 bytes",
    paper_bytes=(
        "{name}: this is the paper's formula, for 16-bit numbers with dropout. Here a number takes "
        "4 bytes, and there are no masks"
    ),
    scores_too=(
        "scores: this counts the scores and the probabilities. The backward pass of a softmax "
        "needs only its output"
    ),
    logits_forgotten=(
        "{name}: the logarithms that the cross-entropy keeps are missing, one for each token and "
        "each entry of the vocabulary"
    ),
    recomputed_block=(
        "checkpointed: this includes what one block keeps while the backward pass computes it "
        "again. The forward pass keeps only its input"
    ),
)
NAMES = ("block", "scores", "model", "checkpointed")


@check_of(MISTAKES, ranks=1)
def predict_kept(check: Check) -> str:
    """Compare with the formulas."""
    with check.trial() as trial:
        pick, choose = trial.draw.randrange, trial.draw.choice
        for _ in range(3):
            # With these sizes, no two mistakes predict the same number. No factor is 4, the bytes
            # of a number.
            batch, sequence, heads = choose((2, 3, 5)), 8 * pick(3, 9), choose((3, 5, 6, 7))
            hidden, layers, vocabulary = 32 * heads, choose((2, 3, 5, 6)), 64 * pick(11, 18)
            trial.situation = (
                f"batch {batch}, sequence {sequence}, hidden {hidden}, {heads} heads, {layers} "
                f"layers, vocabulary {vocabulary}"
            )
            predicted = trial.run(batch, sequence, hidden, heads, layers, vocabulary)
            between, logits = 4 * batch * sequence * hidden, 4 * batch * sequence * vocabulary
            block = block_in_numbers(batch, sequence, hidden, 1, 4)["serial"]
            scores = 4.0 * batch * heads * sequence**2
            end = 2 * between + logits
            right = {
                "block": block,
                "scores": scores,
                "model": layers * block + end,
                "checkpointed": layers * between + end,
            }
            wrong = [
                *((name, right[name] / 4, MISTAKES.elements(name=name)) for name in NAMES),
                ("block", block * 34 / 64, MISTAKES.paper_bytes(name="block")),
                ("scores", scores * 5 / 4, MISTAKES.paper_bytes(name="scores")),
                ("scores", 2 * scores, MISTAKES.scores_too()),
                ("checkpointed", right["checkpointed"] + block, MISTAKES.recomputed_block()),
                *(
                    (name, right[name] - logits, MISTAKES.logits_forgotten(name=name))
                    for name in ("model", "checkpointed")
                ),
            ]
            require_numbers(trial, predicted, right, wrong)
    return "16 numbers for each of bsh in a block, 1 if it is checkpointed, and V for each token"
