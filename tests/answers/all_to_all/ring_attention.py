"""Answers to `ring_attention`."""

import torch
import torch.distributed as dist

from parlab.block_attention import attend as attend_block
from parlab.block_attention import attend_backward as attend_block_backward
from parlab_staff.answers import Answers

answers = Answers("ring_attention")
reference = answers.reference()
merge = answers.reference("merge")

MASK = "positions[owner] <= positions[rank][:, None]"
MERGED = "part if result is None else merge(*result, *part)"
HALVED = "part if result is None else ((result[0] + part[0]) / 2, merge(*result, *part)[1])"
# The two passes have these lines in common. What follows makes an edit possible in one of them.
FORWARD = (
    "        result = None\n        for step in range(ranks):\n            if step < ranks - 1:\n"
)
BACKWARD = (
    "        of_kv, of_kv_handles = 0, []\n        for step in range(ranks):\n"
    "            if step < ranks - 1:\n"
)
ATTEND = """\
            if visible is None or visible.any():
                part = attend(queries, *kv, visible)
"""
FORWARD_WAIT = """\
            if step < ranks - 1:
                for handle in handles:
                    handle.wait()
                kv = arriving
        out, lse = result
"""
BACKWARD_WAIT = """\
            if step < ranks - 1:
                for handle in handles:
                    handle.wait()
                kv = arriving
        for handle in of_kv_handles:
"""
GRADIENTS_ON = "            of_kv, of_kv_handles = pass_on(part + of_kv, group)\n"
TEST = "if positions is not None and positions.shape != right:"
SENDING = "sending = dist.isend(x, group=group, group_dst=(rank + 1) % ranks)"
RECEIVING = "receiving = dist.irecv(arriving, group=group, group_src=(rank - 1) % ranks)"
ZEROS = "            part = torch.zeros_like(kv)\n"
WAIT = "                for handle in handles:\n                    handle.wait()\n"
WAIT_AT_ONCE = f"            if step < ranks - 1:\n{WAIT}"
NEVER_ALONE = "    if ranks == 1:\n        return x, []\n"

answers.edit(
    "wrong_mask",
    "owner_in_front",
    (MASK, MASK.replace("owner", "(2 * rank - owner) % len(positions)")),
)
answers.edit("wrong_mask", "strictly_before", (MASK, MASK.replace("<=", "<")))
answers.edit(None, "halved", (MERGED, HALVED))
answers.edit(
    "sends_more",
    "sent_after_the_last_step",
    (FORWARD, FORWARD.replace("step < ranks - 1", "step < ranks > 1")),
    (FORWARD_WAIT, FORWARD_WAIT.replace("step < ranks - 1", "step < ranks > 1")),
)
answers.edit(
    "sends_more",
    "sent_after_the_last_step_backward",
    (BACKWARD, BACKWARD.replace("step < ranks - 1", "step < ranks > 1")),
    (BACKWARD_WAIT, BACKWARD_WAIT.replace("step < ranks - 1", "step < ranks > 1")),
)
answers.edit(
    "no_overlap",
    "waits_before_it_computes",
    (ATTEND, WAIT_AT_ONCE + ATTEND),
    (FORWARD_WAIT, FORWARD_WAIT.replace(WAIT, "")),
)
answers.edit(
    "no_overlap",
    "computes_before_it_sends",
    (
        FORWARD + "                arriving, handles = pass_on(kv, group)\n",
        FORWARD.replace("            if step < ranks - 1:\n", ""),
    ),
    (
        FORWARD_WAIT,
        FORWARD_WAIT.replace(
            "- 1:\n", "- 1:\n                arriving, handles = pass_on(kv, group)\n"
        ),
    ),
)
answers.edit(
    "no_overlap",
    "waits_before_it_computes_backward",
    (ZEROS, WAIT_AT_ONCE + ZEROS),
    (BACKWARD_WAIT, BACKWARD_WAIT.replace(WAIT, "")),
)
answers.edit(
    "hidden_block",
    "all_blocks_computed",
    (ATTEND, ATTEND.replace("if visible is None or visible.any()", "if True")),
)
answers.edit(
    "not_home",
    "not_sent_home",
    (
        GRADIENTS_ON,
        "            of_kv, of_kv_handles = part + of_kv, []\n"
        "            if step < ranks - 1:\n"
        "                of_kv, of_kv_handles = pass_on(of_kv, group)\n",
    ),
)
answers.edit(
    None,
    "gradients_stay",
    (GRADIENTS_ON, "            of_kv = part if step == 0 else of_kv\n"),
)
answers.edit(
    "keeps_more",
    "all_keys_and_values_kept",
    (
        FORWARD,
        FORWARD.replace("result = None", "result, ctx.every = None, []")
        + "                ctx.every.append(kv)\n",
    ),
    (
        FORWARD_WAIT,
        FORWARD_WAIT.replace("        out, lse", "        ctx.every.append(kv)\n        out, lse"),
    ),
)
answers.edit(
    "hoards",
    "a_list_of_blocks",
    (
        FORWARD,
        FORWARD.replace("result = None", "result, every = None, []")
        + "                every.append(kv)\n",
    ),
)
answers.edit("not_refused", "nothing_refused", (TEST, "if False:"))
answers.edit(
    "no_wait",
    "send_not_awaited",
    ("return arriving, [sending, receiving]", "return arriving, [receiving]"),
)
answers.edit(
    "changed_before_wait",
    "gradients_added_under_way",
    ("pass_on(part + of_kv, group)", "pass_on(part.add_(of_kv), group)\n            part.mul_(2)"),
)
answers.edit(
    "not_contiguous",
    "views_are_sent",
    (
        "torch.stack((k.transpose(1, 2), v.transpose(1, 2)))",
        "torch.stack((k, v)).transpose(2, 3)",
    ),
)
answers.edit(
    "sends_more",
    "keys_and_values_apart",
    (
        SENDING,
        SENDING.replace("dist.isend(x", "[dist.isend(part").replace(
            "ranks)", "ranks) for part in x]"
        ),
    ),
    (
        RECEIVING,
        "receiving = [\n"
        "        dist.irecv(part, group=group, group_src=(rank - 1) % ranks) for part in arriving\n"
        "    ]",
    ),
    ("[sending, receiving]", "[*sending, *receiving]"),
)
answers.edit("sends_more", "sends_to_itself", (NEVER_ALONE, ""))
answers.edit(
    "wrong_neighbor",
    "numbers_of_the_job",
    ("group_dst=(rank", "dst=(rank"),
    ("group_src=(rank", "src=(rank"),
)
answers.edit(
    "wrong_neighbor",
    "the_other_way_around",
    ("(rank + 1) % ranks)", "(rank - 1) % ranks)"),
    ("group_src=(rank - 1)", "group_src=(rank + 1)"),
    ("positions[owner] <=", "positions[(2 * rank - owner) % len(positions)] <="),
)
answers.edit(
    "argument_changed",
    "scaled_in_place",
    ("        result = None\n", "        result = None\n        q.data.mul_(2)\n"),
)
answers.edit(
    None,
    "own_functions",
    ("(attend, attend_backward))", "(block_attention.attend, attend_backward))"),
    ("def pass_on(", "from parlab import block_attention\n\n\ndef pass_on("),
    says="`attend` is never called",
)
answers.edit(
    "no_overlap",
    "receives_after_it_computed",
    (
        RECEIVING,
        "receive = partial(dist.recv, arriving, group=group, group_src=(rank - 1) % ranks)",
    ),
    ("[sending, receiving]", "[SimpleNamespace(wait=receive), sending]"),
    (
        "def pass_on(",
        "from functools import partial\nfrom types import SimpleNamespace\n\n\ndef pass_on(",
    ),
    says="no receive has started",
)
answers.edit(
    None,
    "keys_scaled",
    ("attend(queries, *kv, visible)", "attend(2 * queries, kv[0] / 2, kv[1], visible)"),
    says="`attend` is called with keys and values of no rank",
)
answers.edit(
    None,
    "called_for_each_result",
    ("attend(queries, *kv, visible)", "[attend(queries, *kv, visible)[i] for i in (0, 1)]"),
    says="is called for the keys of ranks",
)
answers.edit(
    None,
    "by_the_communicator_of_the_group",
    ("    arriving = torch.empty_like(x)\n", ""),
    (SENDING, "ways = {'dest': (rank + 1) % ranks, 'source': (rank - 1) % ranks}"),
    (RECEIVING, "arriving = group.comm.sendrecv(x.detach(), **ways)"),
    ("[sending, receiving]", "[]"),
    says="the forward pass sends 0 messages",
)


@answers.wrong("library")
def gathered(q, k, v, positions, group, attend=None, attend_backward=None):
    every = [torch.empty_like(k.contiguous()) for _ in range(group.size())]
    dist.all_gather(every, k.detach().contiguous(), group=group)
    return reference(q, k, v, positions, group, attend, attend_backward)


# Right answers


def masks(positions, owner, rank):
    return None if positions is None else positions[owner] <= positions[rank].unsqueeze(1)


def refuses(q, positions, group):
    if positions is not None and tuple(positions.shape) != (group.size(), q.size(1)):
        raise ValueError(f"positions: {tuple(positions.shape)}")


def handed_on(x, arriving, group):
    """Start a message to the next rank, in a batch."""
    rank, ranks = group.rank(), group.size()
    operations = [
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % ranks),
        dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % ranks),
    ]
    return dist.batch_isend_irecv(operations)


class Buffered(torch.autograd.Function):
    """Two buffers take turns; the gradients of a rank's own keys from its own queries stay."""

    @staticmethod
    def forward(ctx, q, k, v, positions, group, attend, attend_backward):
        rank, ranks = group.rank(), group.size()
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        kv, other = torch.stack([k, v]), None
        out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -torch.inf)
        for step in range(ranks):
            last = step == ranks - 1
            if not last:
                other = torch.empty_like(kv) if other is None else other
                works = handed_on(kv, other, group)
            visible = masks(positions, (rank - step) % ranks, rank)
            if visible is None or bool(visible.any()):
                out, lse = merge(out, lse, *attend(q, kv[0], kv[1], visible))
            if not last:
                for work in works:
                    work.wait()
                kv, other = other, kv
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.more = positions, group, attend_backward
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx, of_out):
        q, k, v, out, lse = ctx.saved_tensors
        positions, group, attend_backward = ctx.more
        rank, ranks = group.rank(), group.size()
        of_out = of_out.transpose(1, 2)
        kv, of_q, travels, on_the_way = torch.stack([k, v]), torch.zeros_like(q), None, []
        for step in range(ranks):
            last = step == ranks - 1
            if not last:
                arriving = torch.empty_like(kv)
                works = handed_on(kv, arriving, group)
            visible, own = masks(positions, (rank - step) % ranks, rank), None
            if visible is None or bool(visible.any()):
                first, *own = attend_backward(of_out, out, lse, q, kv[0], kv[1], visible)
                of_q.add_(first)
            own = torch.zeros_like(kv) if own is None else torch.stack(own)
            if step == 0:
                at_home = own
            else:
                for work in on_the_way:
                    work.wait()
                total = own if travels is None else own + travels
                travels = torch.empty_like(kv)
                on_the_way = handed_on(total, travels, group)
            if not last:
                for work in works:
                    work.wait()
                kv = arriving
        for work in on_the_way:
            work.wait()
        of_k, of_v = at_home if travels is None else at_home + travels
        return *(x.transpose(1, 2) for x in (of_q, of_k, of_v)), None, None, None, None


@answers.right
def two_buffers(
    q, k, v, positions, group, attend=attend_block, attend_backward=attend_block_backward
):
    refuses(q, positions, group)
    return Buffered.apply(q, k, v, positions, group, attend, attend_backward)


answers.right_edit(
    "online_softmax",
    (MERGED, "online(result, part)"),
    (
        "class RingAttention",
        """\
def online(result, part):
    if result is None:
        return part
    highest = torch.maximum(result[1], part[1])
    old, new = (result[1] - highest).exp(), (part[1] - highest).exp()
    total = old + new
    out = (result[0] * old.unsqueeze(-1) + part[0] * new.unsqueeze(-1)) / total.unsqueeze(-1)
    return out, highest + total.log()


class RingAttention""",
    ),
)
answers.right_edit("receives_first", ("[sending, receiving]", "[receiving, sending]"))
answers.right_edit(
    "merged_with_nothing",
    (
        "        result = None\n",
        "        lse = queries.new_full(queries.shape[:-1], -torch.inf)\n"
        "        result = torch.zeros_like(queries), lse\n",
    ),
    (MERGED, "merge(*result, *part)"),
)
answers.right_edit(
    "own_keys_from_k",
    (
        "attend(queries, *kv, visible)",
        "attend(queries, *(kv if step else (k.transpose(1, 2), v.transpose(1, 2))), visible)",
    ),
)
answers.right_edit(
    "gradients_waited_for_at_once",
    (
        GRADIENTS_ON,
        f"{GRADIENTS_ON}            for handle in of_kv_handles:\n                handle.wait()\n",
    ),
)
