"""Answers to `accumulate`."""

from contextlib import nullcontext

import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("accumulate")

LAST = "nullcontext() if last else parallel.no_sync()"
WEIGHT = " * (len(inputs) / total)"
FINISH = "    parallel.finish()\n"
SUM = "weighted_loss += loss.item()"
OWN = "sum(len(x) for x, _ in micro_batches)"

answers.edit("no_sync_forgotten", "no_sync_forgotten", (LAST, "nullcontext()"))
answers.edit(
    None,
    "keeps_the_graphs",
    ("loss.backward()", "loss.backward(retain_graph=True)"),
    says="when forward pass 2 begins",
)
answers.edit(
    None,
    "keeps_the_last_graph",
    ("loss.backward()", "loss.backward(retain_graph=last)"),
    says="when finish() is called",
)
answers.edit(
    None,
    "first_synchronizes",
    ("last = i == len(micro_batches) - 1", "last = i == 0"),
    says="outside no_sync(): [1] of 3, expected only the last",
)
answers.edit("only_no_sync", "all_in_no_sync", (LAST, "parallel.no_sync()"))
answers.edit(None, "not_finished", (FINISH, ""), says="each call of finish() are []")
answers.edit(
    "ranks_left",
    "nothing_to_do",
    (
        "    weighted_loss = 0.0\n",
        "    weighted_loss = 0.0\n    if not micro_batches: return 0.0\n",
    ),
)
answers.edit(
    "ranks_left", "finished_each_time", (FINISH, ""), (SUM, SUM + "\n        parallel.finish()")
)
answers.edit("unweighted", "unweighted", (WEIGHT, ""))
answers.edit(None, "one_over_k", (WEIGHT, " / len(micro_batches)"))
answers.edit("targets_counted", "weights_by_targets", ("len(inputs) /", "len(targets) /"))
answers.edit("own_total", "own_total", (WEIGHT, f" * (len(inputs) / {OWN})"))
answers.edit("zeroed", "zeroed", ("loss.backward()", "parallel.zero_grad(); loss.backward()"))
answers.edit("returns_none", "no_return", ("return weighted_loss", "pass"))
answers.edit("wrong_type", "a_tensor", (SUM, "weighted_loss += loss.detach()"))
answers.edit(
    "argument_changed",
    "popped",
    (
        "enumerate(micro_batches)",
        "enumerate([micro_batches.pop(0) for _ in range(len(micro_batches))])",
    ),
    ("last = i == len(micro_batches) - 1", "last = i == 3 - parallel.group.rank() - 1"),
)
answers.edit(None, "loss_of_the_last", (SUM, "weighted_loss = loss.item()"), says="add up to")


@answers.wrong(None, says="backward passes: 1, micro-batches: 3")
def one_backward_pass_at_the_end(parallel, micro_batches, total):
    losses = [F.cross_entropy(parallel(x), y) * (len(x) / total) for x, y in micro_batches]
    if losses:
        sum(losses).backward()
    parallel.finish()
    return sum(loss.item() for loss in losses)


@answers.wrong(None, says="when forward pass 2 begins")
def all_forward_passes_first(parallel, micro_batches, total):
    losses = [F.cross_entropy(parallel(x), y) * (len(x) / total) for x, y in micro_batches]
    for i, loss in enumerate(losses):
        with nullcontext() if i == len(losses) - 1 else parallel.no_sync():
            loss.backward()
    parallel.finish()
    return sum(loss.item() for loss in losses)


@answers.wrong("left_the_buffers")
def gradients_set_to_none(parallel, micro_batches, total):
    for parameter in parallel.parameters():
        parameter.grad = None
    return answers.reference()(parallel, micro_batches, total)


@answers.wrong("targets_counted")
def sum_over_targets(parallel, micro_batches, total):
    part = 0.0
    for i, (inputs, targets) in enumerate(micro_batches):
        with nullcontext() if i == len(micro_batches) - 1 else parallel.no_sync():
            loss = F.cross_entropy(parallel(inputs), targets, reduction="sum") / total
            loss.backward()
        part += loss.item()
    parallel.finish()
    return part


@answers.right
def loss_in_a_pass_of_its_own(parallel, micro_batches, total):
    part = 0.0
    for i, (x, y) in enumerate(micro_batches):
        part += F.cross_entropy(parallel(x), y).item() * (len(x) / total)
        with nullcontext() if i == len(micro_batches) - 1 else parallel.no_sync():
            (F.cross_entropy(parallel(x), y) * (len(x) / total)).backward()
    parallel.finish()
    return part


@answers.right
def all_but_the_last_first(parallel, micro_batches, total):
    def backward(inputs, targets):
        loss = F.cross_entropy(parallel(inputs), targets) * len(inputs) / total
        loss.backward()
        return loss.item()

    part = 0.0
    with parallel.no_sync():
        for batch in micro_batches[:-1]:
            part += backward(*batch)
    for batch in micro_batches[-1:]:
        part += backward(*batch)
    parallel.finish()
    return part


@answers.right
def sums_of_losses(parallel, micro_batches, total):
    part = 0
    for left, (x, y) in zip(range(len(micro_batches))[::-1], micro_batches, strict=True):
        with parallel.no_sync() if left else nullcontext():
            loss = F.cross_entropy(parallel(x), y, reduction="sum") / (total * y.numel() / len(x))
            loss.backward()
        part += float(loss)
    parallel.finish()
    return part


@answers.right
def only_backward_in_no_sync(parallel, micro_batches, total):
    parts = []
    for i, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = F.cross_entropy(parallel(inputs), targets) * len(inputs) / total
        with parallel.no_sync() if i < len(micro_batches) else nullcontext():
            loss.backward()
        parts.append(loss.item())
    parallel.finish()
    return sum(parts)


@answers.right
def last_one_first_in_the_list(parallel, micro_batches, total):
    part = 0.0
    for i in range(len(micro_batches) - 1, -1, -1):
        inputs, targets = micro_batches[i]
        with parallel.no_sync() if i else nullcontext():
            loss = len(inputs) / total * F.cross_entropy(parallel(inputs), targets)
            loss.backward()
            part += loss.item()
    parallel.finish()
    return part


@answers.right
def through_the_inner_model(parallel, micro_batches, total):
    part = 0.0
    for number, (inputs, targets) in enumerate(micro_batches):
        parallel.synchronize = number == len(micro_batches) - 1
        loss = F.cross_entropy(parallel.model(inputs), targets) * (len(inputs) / total)
        loss.backward()
        part += loss.item()
    parallel.synchronize = True
    parallel.finish()
    return part
