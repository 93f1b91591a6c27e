"""Mistakes that the checks of several exercises name."""

from parlab.checks.mistakes import Mistakes

MISTAKES = Mistakes(
    loss_not_divided=(
        "{name} is the sum over the micro-batches of their mean losses' {what}: each counts by its "
        "share of the batch's samples, or the step is {times} times too long"
    ),
    remainder_unweighted=(
        "{name} is the mean over micro-batches of {counts} samples, all counted alike: the mean "
        "over the samples counts each by how many it has"
    ),
    remainder_dropped=(
        "{name} lacks samples: m = {pieces} does not divide {samples}, and those that are left "
        "over are in no micro-batch. Pieces of {counts} samples have them all"
    ),
    not_accumulated=(
        "{name} is that of the last micro-batch alone: the gradients of all of them add up in "
        "`.grad`"
    ),
    weights_updated=(
        "{name} has changed in the step: weights stay as they are until all micro-batches are "
        "through, and the optimizer is the caller's. A later micro-batch would see other weights "
        "than an earlier one"
    ),
    no_boundary_gradient=(
        "{name} is None on rank {rank}: its stage got no gradient. The gradient of the activation "
        "that came in has to go back to where it came from"
    ),
    gradients_not_sent=(
        "the last rank is done, and all others wait for gradients: after its backward pass a rank "
        "sends `x.grad`, of the activation that came in, back to where that came from"
    ),
    activations_not_sent=(
        "rank 0 has computed its stage's output and sent nothing, and all others wait for it. "
        "`mailbox.send(action, tensor)` names the action that *needs* the tensor, here the forward "
        "pass of stage 1: with the action that made it, the tensor stays where it is"
    ),
    no_backward_pass=(
        "no backward pass has gone through stage {stage} on rank {rank}: `backward` starts from "
        "the stage's output itself, which has the graph of its pass. Detach what is sent, not what "
        "is kept"
    ),
    wrong_start=(
        "{name} is what the stage gives where its output's gradient is all ones: the backward pass "
        "is to go on from the gradient that the next stage sends"
    ),
    never_freed=(
        "rank {rank} still holds {got} micro-batches of its stages where the schedule leaves "
        "{right}: after its backward pass nothing needs a micro-batch's input and output. Take "
        "them out of where you keep them (`pop`)"
    ),
    graph_kept=(
        "autograd holds the activations of {got} micro-batches on rank {rank} where the schedule "
        "leaves {right}: a backward pass frees them, unless `retain_graph` keeps them"
    ),
    recomputed=(
        "stage {stage} computes the forward pass of micro-batch {i} {times} times: keep its output "
        "for the backward pass. Dropout would draw again, and BatchNorm count the samples twice"
    ),
    other_order=(
        "rank {rank} does {got} where its schedule says {right}: the actions in the list's order, "
        "whatever they are"
    ),
    loss_arguments=(
        "the loss is that of `loss_of(targets, scores)`: the scores are first, as in "
        "`F.cross_entropy(scores, targets)`"
    ),
    loss_everywhere=(
        "rank {rank} returns {got}: the rank of the last stage has the loss, all others return None"
    ),
    frozen_raises=(
        "stage {stage} has frozen parameters (`requires_grad=False`), and rank {rank} asks for "
        "gradients that there are none of: of a frozen parameter, or through a first stage that is "
        "frozen as a whole and whose output has no graph. `y.requires_grad` says whether it has one"
    ),
    frozen_not_passed=(
        "stage {stage} is frozen (`requires_grad=False`), and the stage before waits for a "
        "gradient from it: its weights need none, but the way back goes through it"
    ),
    unfrozen=(
        "parameter {number} of this rank is frozen (`requires_grad=False`), and {got} after the "
        "step: what is frozen is the caller's to say"
    ),
    mode_changed=(
        "stage {stage} is in {got} mode {when}, and was in {right} mode before: `train()` and "
        "`eval()` are the caller's. Dropout and BatchNorm compute something else in each"
    ),
    tokens_require_grad=(
        "rank 0 asks for the gradient of the first stage's inputs: here they are tokens, whole "
        "numbers, which have none. What came from another stage needs one, what the caller gives "
        "does not"
    ),
    local_through_group=(
        "rank {rank} sends to itself, or receives from itself: where both stages are on one rank, "
        "the tensor is handed over, and nothing goes through `group`"
    ),
    to_itself=(
        "rank {rank} sends to itself, or receives from itself, and has no two stages that follow "
        "each other. Stage s is on rank s % p of `group`, which is `group_dst` or `group_src`: "
        "`dst` and `src` count the ranks of the whole job"
    ),
    no_input_gradient=(
        "rank {rank} has done {action}, and what it then has for stage {stage} is None: the tensor "
        "that came in has a `.grad` only if it is a leaf that required a gradient "
        "(`requires_grad_()`) before the forward pass"
    ),
    blocking_send=(
        "{ranks} wait in the middle of the step for what they sent to be received, each by the "
        "next of them: two neighbours may send to each other first. `dist.isend` returns at once, "
        "and what it returns is waited for at the end of the step"
    ),
    sent_more=(
        "rank {rank} sends {got} where {right} are to be sent: each activation and each gradient "
        "once, to the rank that needs it"
    ),
)


def texts_of(*keys: str) -> dict[str, str]:
    """Of these mistakes, for the check of an exercise in which they can be made."""
    return {key: MISTAKES.texts[key] for key in keys}
