"""Exercise `predict_no_sync`."""

from functools import partial

import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import same_states
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.models import TOLERANCE, tokens, trainable
from parlab.checks.base.predictions import require_numbers
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel._models import awkward_model, gradients_of
from parlab.checks.data_parallel._replica import Replica

PASSES = 4
WRONG = {  # what each mistake predicts, and its text
    "sent_each_time": (
        ("bytes_here", PASSES),
        "bytes_here: a bucket is sent when its number of missing gradients reaches zero. That "
        "happens in the first pass, and only finish() sets it back",
    ),
    "sent_once": (
        ("bytes_ddp", 1),
        "bytes_ddp: DistributedDataParallel starts again in each backward pass that synchronizes, "
        "and sends everything",
    ),
    "alike_here": (
        ("alike_here", 1),
        "alike_here: what the passes after the first add to .grad is this rank's own, and is never "
        "sent",
    ),
    "apart_ddp": (
        ("alike_ddp", 0),
        "alike_ddp: each pass averages everything in .grad. The part that is already equal on all "
        "ranks does not change",
    ),
}
MISTAKES = Mistakes(**{key: text for key, (_, text) in WRONG.items()})


@check_of(MISTAKES)
def predict_no_sync(check: Check) -> str:
    """Compare with four backward passes without no_sync, here and in the library."""
    with check.trial() as trial:
        predicted = trial.run()
        right = measure(trial)
        wrong = [(*value, getattr(MISTAKES, key)()) for key, (value, _) in WRONG.items()]
        if trial.size == 1:
            del right["alike_here"]  # one rank always agrees with itself
        require_numbers(trial, predicted, right, wrong)
    return "as measured: " + ", ".join(f"{name} {value:g}" for name, value in right.items())


def measure(trial: Trial) -> dict[str, float]:
    """Return the bytes sent per byte of gradients, and 1 if the ranks agree afterward, else 0."""
    found: dict[str, float] = {}
    library = partial(DistributedDataParallel, process_group=trial.group)
    for name, wrapped in (("here", partial(Replica, group=trial.group)), ("ddp", library)):
        model = awkward_model(trial.draw)
        model.unused.requires_grad_(False)  # the library would wait for it
        parallel = wrapped(model)
        trial.ledger.clear()
        for _ in range(PASSES):
            shards = [tokens(trial.draw, model, 3) for _ in range(trial.size)]
            inputs, targets = shards[trial.rank]
            F.cross_entropy(parallel(inputs), targets).backward()
        if isinstance(parallel, Replica):
            parallel.finish()
        everyone = trial.gather(gradients_of(model))
        alike = all(same_states(other, everyone[0], TOLERANCE) for other in everyone)
        once = sum(p.nbytes for p in trainable(model).values())
        found[f"bytes_{name}"] = trial.ledger.bytes_sent("all_reduce") / once
        found[f"alike_{name}"] = int(alike)
    return found
