"""Answers to `train_step`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("train_step")

ZERO = "    adam.gradient.zero_()\n"
TIED = """\
    if stage.embedding is not None:
        dist.all_reduce(stage.embedding.grad, group=groups["embedding"])
"""
UPDATE = "    zero_step(adam, groups)\n"
LOSS = '    dist.all_reduce(loss, group=groups["all"])\n'
COPIES = '(groups["dp"].size() * groups["tp"].size())'

answers.edit("gradients_kept", "gradients_kept", (ZERO, ""))
answers.edit("gradients_kept", "zeroed_at_the_end", (ZERO, ""), (UPDATE, UPDATE + ZERO))
answers.edit("gradients_detached", "zero_grad", (ZERO, "    stage.zero_grad()\n"))
answers.edit("gradients_detached", "new_gradient", (
    TIED,
    "    if stage.embedding is not None:\n"
    "        total = stage.embedding.grad.clone()\n"
    '        dist.all_reduce(total, group=groups["embedding"])\n'
    "        stage.embedding.grad = total\n",
))  # fmt: skip
answers.edit("tied_not_summed", "tied_not_summed", (TIED, ""))
answers.edit("tied_not_summed", "tied_too_late", (TIED + UPDATE, UPDATE + TIED))
answers.edit(None, "tied_averaged", (
    TIED,
    TIED + '        stage.embedding.grad /= groups["embedding"].size()\n',
), says="the gradient of embedding at index")  # fmt: skip
answers.edit("averaged", "averaged_too_early", (
    UPDATE,
    '    dist.all_reduce(adam.gradient, group=groups["dp"])\n'
    '    adam.gradient /= groups["dp"].size()\n' + UPDATE,
))  # fmt: skip
answers.edit(None, "tied_over_all_ranks", (TIED, TIED.replace('"embedding"', '"all"')))
answers.edit("raises", "middle_stages", (
    TIED, '    dist.all_reduce(stage.embedding.grad, group=groups["embedding"])\n'
))  # fmt: skip
answers.edit("does_not_end", "first_stage_alone", (
    TIED, TIED.replace("stage.embedding is not None", "stage.first")
))  # fmt: skip
answers.edit(None, "no_update", (UPDATE, ""))
answers.edit(None, "two_optimizers", (
    UPDATE, UPDATE + "    adam.optimizer.step()\n"
), says="the stage's new weight")  # fmt: skip
answers.edit(None, "other_group", ('groups["pp"]', 'groups["dp"]'))
answers.edit("replica_loss", "loss_over_pp", (
    LOSS, '    dist.all_reduce(loss, group=groups["pp"])\n'
), (" / " + COPIES, ""))  # fmt: skip
answers.edit(None, "largest_loss", (
    LOSS, LOSS.replace("loss,", "loss, op=dist.ReduceOp.MAX,")
), (" / " + COPIES, ""), says="the result is")  # fmt: skip
answers.edit("copies_in_loss", "copies_of_tp", (COPIES, 'groups["dp"].size()'))
answers.edit("copies_in_loss", "sum", (" / " + COPIES, ""))
answers.edit("tied_traffic", "tied_twice", (
    TIED,
    TIED + TIED.split("\n")[1] + "\n"
    '        stage.embedding.grad /= groups["embedding"].size()\n',
))  # fmt: skip
answers.edit("wrong_type", "tensor", (f"loss.item() / {COPIES}", f"loss / {COPIES}"))
answers.edit("default_group", "default_group", (LOSS, "    dist.all_reduce(loss)\n"))


@answers.right
def dimension_by_dimension(stage, adam, tokens_MbS, targets_MbS, groups, pipeline_pass, zero_step):
    """The loss of a pipeline, and then the mean over the replicas."""
    torch.zero_(adam.gradient)
    loss = pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])
    dist.broadcast(loss, group=groups["pp"], group_src=groups["pp"].size() - 1)
    dist.all_reduce(loss, group=groups["dp"])
    if "embedding" in groups and groups["embedding"].size() > 1:
        dist.all_reduce(stage.embedding.grad, group=groups["embedding"])
    zero_step(adam, groups)
    return float(loss / groups["dp"].size())


@answers.right
def zeroed_by_parameter(stage, adam, tokens_MbS, targets_MbS, groups, pipeline_pass, zero_step):
    for parameter in stage.parameters():
        parameter.grad.zero_()
    loss = pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])
    if stage.first or stage.last:
        dist.all_reduce(stage.embedding.grad, group=groups["embedding"])
    copies = groups["dp"].size() * groups["tp"].size()
    zero_step(adam, groups)
    total = (loss / copies).double()
    dist.all_reduce(total, group=groups["all"])
    return total.item()


@answers.right
def overlapped(stage, adam, tokens_MbS, targets_MbS, groups, pipeline_pass, zero_step):
    """The loss travels during the update."""
    stage.zero_grad(set_to_none=False)
    loss = pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])
    loss = loss * (groups["pp"].size() / groups["all"].size())
    work = dist.all_reduce(loss, group=groups["all"], async_op=True)
    if stage.embedding is not None:
        dist.all_reduce(stage.embedding.grad, group=groups["embedding"])
    work.wait()
    zero_step(adam, groups)
    return loss.item()


@answers.right
def gathered(stage, adam, tokens_MbS, targets_MbS, groups, pipeline_pass, zero_step):
    """All losses, of which only the last stages' count."""
    adam.gradient.fill_(0)
    loss = pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])
    every = [torch.zeros_like(loss) for _ in range(groups["all"].size())]
    dist.all_gather(every, loss, group=groups["all"])
    losses = [one.item() for one in every if one.item() > 0]
    if stage.embedding is not None:
        dist.all_reduce(stage.embedding.grad, group=groups["embedding"])
    zero_step(adam, groups)
    return sum(losses) / len(losses)


answers.right_edit(
    "tied_by_messages",
    (
        TIED,
        """\
    if stage.embedding is not None and groups["embedding"].size() == 2:
        group, own = groups["embedding"], stage.embedding.grad
        other, peer = torch.empty_like(own), 1 - groups["embedding"].rank()
        work = dist.isend(own.clone(), group=group, group_dst=peer)
        dist.recv(other, group=group, group_src=peer)
        work.wait()
        own += other
""",
    ),
)
answers.right_edit("loss_first", (LOSS, ""), (TIED, LOSS + TIED))
