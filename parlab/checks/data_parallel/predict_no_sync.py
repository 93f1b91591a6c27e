"""Exercise `predict_no_sync`."""

import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parlab.checks.check import Check, check_of
from parlab.checks.compare import same_states
from parlab.checks.data_parallel.accumulate import Replica
from parlab.checks.data_parallel.models import Awkward, awkward_model, gradients_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.models import TOLERANCE, tokens, trainable
from parlab.checks.predictions import first_wrong, form, misconception
from parlab.checks.trial import Trial

PASSES = 4

MISTAKES = Mistakes(
    sent_each_time=(
        "bytes_here: a bucket leaves when its count of missing gradients comes to zero. The first "
        "pass brings it there; only finish() sets it back"
    ),
    sent_once=(
        "bytes_ddp: DistributedDataParallel gets ready again at the start of each backward pass "
        "that synchronises, and sends everything in each"
    ),
    alike_here=(
        "alike_here: what the passes after the first add to .grad is this rank's own, and "
        "never sent"
    ),
    apart_ddp=(
        "alike_ddp: each pass averages all that is in .grad by then, and an average of what "
        "is equal on all ranks already changes nothing"
    ),
)


@check_of(MISTAKES)
def predict_no_sync(check: Check) -> str:
    """Compare with what four backward passes without no_sync do, here and in the library."""
    with check.trial() as trial:
        predicted = trial.run()
        measured = measure(trial)
        wrong_numbers = [
            ("bytes_here", PASSES, MISTAKES.sent_each_time()),
            ("alike_here", 1, MISTAKES.alike_here()),
            ("bytes_ddp", 1, MISTAKES.sent_once()),
            ("alike_ddp", 0, MISTAKES.apart_ddp()),
        ]
        if trial.size == 1:
            del measured["alike_here"]  # one rank agrees with itself, whatever it does
        trial.require(
            lambda: form(predicted, measured),
            lambda: misconception(predicted, measured, wrong_numbers),
            lambda: first_wrong(predicted, measured),
        )
    return "as measured: " + ", ".join(f"{name} {value:g}" for name, value in measured.items())


def measure(trial: Trial) -> dict[str, float]:
    """Bytes over those of all gradients, and whether ranks then agree on these (1) or not (0)."""

    def model() -> Awkward:
        made = awkward_model(trial.draw)
        made.unused.requires_grad_(False)  # the library would wait for it
        return made

    here, library = Replica(model(), trial.group), model()
    bytes_here, alike_here = _accumulated(trial, here, here.model)
    parallel = DistributedDataParallel(library, process_group=trial.group)
    bytes_ddp, alike_ddp = _accumulated(trial, parallel, library)
    return {
        "bytes_here": bytes_here,
        "alike_here": alike_here,
        "bytes_ddp": bytes_ddp,
        "alike_ddp": alike_ddp,
    }


def _accumulated(trial: Trial, parallel: nn.Module, model: Awkward) -> tuple[float, int]:
    trial.ledger.clear()
    for _ in range(PASSES):
        shards = [tokens(trial.draw, model, 3) for _ in range(trial.size)]
        inputs, targets = shards[trial.rank]
        F.cross_entropy(parallel(inputs), targets).backward()
    if isinstance(parallel, Replica):
        parallel.finish()
    everyone = trial.gather(gradients_of(model))
    alike = all(same_states(other, everyone[0], TOLERANCE) for other in everyone)
    sent = trial.ledger.bytes_sent("all_reduce")
    return sent / sum(p.nbytes for p in trainable(model).values()), int(alike)
