"""Exercise `broadcast_state`."""

from typing import Any

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal_states, same, same_states, wrong_names
from parlab.checks.data_parallel import models
from parlab.checks.data_parallel.models import (
    Tensors,
    awkward_model,
    gradients_of,
    in_column_order,
)
from parlab.checks.messages import no_pickles, something_sent
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE, State, state_of, trainable
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    **models.MISTAKES.texts,
    **models.LAYOUT.texts,
    mean="{name} is the mean of all ranks' values: a mean of random weights is smaller",
    root_changed=(
        "{name} has changed on rank 0, whose values all are to have: is root=0, and is it a "
        "broadcast?"
    ),
    other_root="{name} is rank {root}'s, where rank 0's is right: look at `root`",
    took_no_part=(
        "all is as before, and rank {rank} took part in no broadcast: every rank makes the call, "
        "those that receive as well"
    ),
    into_a_copy=(
        "all is as before: did the broadcast write into a copy? .clone() and .to(…) make new "
        "tensors; .detach() is the same memory"
    ),
    no_buffers=(
        "parameters are broadcast but buffers (scale, seen, shift) are not: ranks compute "
        "different outputs from the same weights"
    ),
    not_persistent=(
        "the buffer `shift` is still this rank's own: it is not persistent, so state_dict() "
        "leaves it out. model.buffers() has it"
    ),
    no_integers=(
        "the buffer `seen` is still this rank's own: it counts in integers, and is one of the "
        "model's buffers like the others"
    ),
    no_frozen=(
        "frozen.weight is still this rank's own: it is never trained, so nothing would ever make "
        "it the same. Broadcast it whether it requires a gradient or not"
    ),
    tied_twice=(
        "{got} bytes arrive where {right} are enough: a tied weight is sent twice. state_dict() "
        "lists it under both of its names, parameters() once"
    ),
)


@check_of(MISTAKES)
def broadcast_state(check: Check) -> str:
    """Check on models that start from another seed on each rank, on 1, 2, … ranks."""
    for trial in check.trials():
        model = in_column_order(awkward_model(trial.draw, trial.rank))
        for parameter in trainable(model).values():
            parameter.grad = parameter.detach() * 2  # is not to be sent, and stays
        gradients = gradients_of(model)
        starts, tensors = trial.gather(state_of(model)), Tensors(model)
        got = trial.run(model, trial.comm)
        trial.require(
            lambda: returns_nothing(got),
            lambda: something_sent(trial),
            lambda: no_pickles(trial),
            tensors.kept,
            lambda: of_rank_0(state_of(model), starts, trial),
            lambda: sent_once(model, trial),
            lambda: equal_states(gradients_of(model), gradients, "the .grad of {}", 0.0),
        )
    return "parameters and all buffers of rank 0 on every rank, in place, each sent once"


def returns_nothing(got: Any) -> Finding | None:
    if got is None:
        return None
    got = f"something of type {type(got).__name__}"
    return COMMON.returns_something(got=got, instead="the model's tensors")


def of_rank_0(got: State, starts: list[State], trial: Trial) -> Finding | None:
    rank, own = trial.rank, starts[trial.rank]
    wrong = wrong_names(got, starts[0])
    if not wrong:
        return None
    name = next((n for n in wrong if n != "seen"), "seen")
    mean = sum(start[name].double() for start in starts) / len(starts)
    if trial.size > 1 and same(got[name].double(), mean, TOLERANCE):
        return MISTAKES.mean(name=name)
    for root, start in enumerate(starts):
        if root not in (0, rank) and same(got[name], start[name]):
            return MISTAKES.other_root(name=name, root=root)
    if rank == 0:
        return MISTAKES.root_changed(name=name)
    if same_states(got, own, 0.0):
        moved = any(call.bytes for call in trial.calls[rank])
        return MISTAKES.into_a_copy() if moved else MISTAKES.took_no_part(rank=rank)
    own_still = {
        ("scale", "seen", "shift"): MISTAKES.no_buffers(),
        ("shift",): MISTAKES.not_persistent(),
        ("seen",): MISTAKES.no_integers(),
        ("frozen.weight",): MISTAKES.no_frozen(),
        ("hidden.weight",): models.LAYOUT.copy_not_written_back(name="hidden.weight"),
    }.get(tuple(sorted(wrong)))
    if own_still and all(same(got[name], own[name]) for name in wrong):
        return own_still
    return equal_states(got, starts[0], "{}", 0.0)


def sent_once(model: models.Awkward, trial: Trial) -> Finding | None:
    """Each rank but 0 receives each tensor's bytes once."""
    if trial.rank == 0:
        return None
    once = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    arrived = sum(call.bytes_received for call in trial.calls[trial.rank])
    if arrived == once + model.embed.weight.nbytes:
        return MISTAKES.tied_twice(got=arrived, right=once)
    if arrived != once:
        return evidence(f"{arrived} bytes arrive where {once} are right: each tensor's once")
    return None
