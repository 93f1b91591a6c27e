"""Exercise `broadcast_state`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_states, returns_nothing, same, wrong_names
from parlab.checks.base.messages import no_pickles, something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import State, state_of, trainable
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel import _models
from parlab.checks.data_parallel._models import (
    Awkward,
    Tensors,
    awkward_model,
    gradients_of,
    in_column_order,
)
from parlab.costs.collectives import ceil_log2

MISTAKES = Mistakes(
    **_models.MISTAKES.texts,
    root_changed=(
        "{name} has changed on rank 0, whose values all ranks must have. Broadcast with root=0, do "
        "not sum or average, and send each tensor in its own dtype"
    ),
    nothing_arrived=(
        "no tensor has changed. Every rank must call the broadcast, and receive into the model's "
        "own memory: .clone() copies it, .to(…) may copy it, and .detach() does not"
    ),
    no_buffers=(
        "these buffers are still this rank's own: {names}. model.buffers() has all of them, of any "
        "dtype, and also those that state_dict() leaves out"
    ),
    tied_twice=(
        "{got} bytes arrive, expected {right}: a tied weight is sent twice. state_dict(), or "
        "a loop over the modules, meets it under both names, model.parameters() only once"
    ),
    one_by_one=(
        "it sends {times:.3g} times the bytes of the model, to one rank after the other. Use one "
        "`Bcast` for each tensor, or a tree: there, no rank sends more than ⌈log₂ N⌉ times"
    ),
)
BUFFERS = {"scale", "seen", "shift"}


@check_of(MISTAKES)
def broadcast_state(check: Check) -> str:
    """Check models that start from different seeds, on 1, 2, … ranks."""
    for trial in check.trials():
        for _ in trial.cases({"a model from another seed on each rank": None}):
            _broadcast(trial)
    return "parameters and all buffers of rank 0 on every rank, in place, each sent once"


def _broadcast(trial: Trial) -> None:
    model = in_column_order(awkward_model(trial.draw, trial.rank))
    model.seen.fill_(2**53 + 1 + 2 * trial.rank)  # which no floating-point number equals
    for parameter in trainable(model).values():
        parameter.grad = parameter.detach() * 2  # must not be sent, and must stay
    gradients = gradients_of(model)
    starts, tensors = trial.gather(state_of(model)), Tensors(model)
    got = trial.run(model, trial.comm)
    trial.require(
        lambda: returns_nothing(got, "changes to the model's tensors"),
        lambda: something_sent(trial),
        lambda: no_pickles(trial),
        tensors.kept,
        lambda: values(state_of(model), starts[0], starts[trial.rank], trial.rank),
        lambda: received_once(model, trial),
        lambda: sent_as_in_a_tree(model, trial),
        lambda: equal_states(gradients_of(model), gradients, "the .grad of {}", 0.0),
    )


def values(got: State, right: State, own: State, rank: int) -> Finding | None:
    wrong = wrong_names(got, right)
    if wrong and rank == 0:
        return MISTAKES.root_changed(name=wrong[0])
    if wrong and all(same(got[name], own[name]) for name in wrong):
        if len(wrong) == len(right):
            return MISTAKES.nothing_arrived()
        if BUFFERS.issuperset(wrong):
            return MISTAKES.no_buffers(names=", ".join(wrong))
        if wrong == ["hidden.weight"]:
            return MISTAKES.copy_not_written_back(name=wrong[0])
    return equal_states(got, right, "{}", 0.0)


def received_once(model: Awkward, trial: Trial) -> Finding | None:
    once = bytes_of(model)
    arrived = sum(call.bytes_received for call in trial.calls[trial.rank])
    if trial.rank == 0 or arrived == once:
        return None
    if arrived == once + model.embed.weight.nbytes:
        return MISTAKES.tied_twice(got=arrived, right=once)
    return observed(f"{arrived} bytes arrive, expected {once}: each tensor once")


def sent_as_in_a_tree(model: Awkward, trial: Trial) -> Finding | None:
    times = trial.bytes_sent(trial.rank) / bytes_of(model)
    return MISTAKES.one_by_one(times=times) if times > max(ceil_log2(trial.size), 1) else None


def bytes_of(model: Awkward) -> int:
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
