"""Experts and ring attention: a small GPT with a split sequence, on any number of ranks.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/09_all_to_all.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/09_all_to_all.py

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo. All ranks share each
sequence, in a zigzag layout, and the experts of each layer. Keys and values travel around a ring.
Tokens travel to their experts in an all-to-all with uneven parts, so none is dropped. `--balance`
is the factor of the load-balancing loss. (To overlap the ring with the computation on GPUs, see
torch.distributed.tensor.experimental.context_parallel.)
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from parlab import models
from parlab.data import text


def start_ranks() -> torch.device:
    """Join the process group that torchrun prepared. Return this rank's device."""
    # NCCL needs a GPU for each rank of this node.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # otherwise, the ranks would compete for cores
        dist.init_process_group("gloo")
    return device


class AllToAll(torch.autograd.Function):
    """Sends `to[i]` rows to rank i and returns `came[i]` rows from it. Gradients travel back."""

    @staticmethod
    def forward(ctx, x: Tensor, to: list[int], came: list[int]) -> Tensor:
        ctx.to, ctx.came = to, came
        received = x.new_empty(sum(came), *x.shape[1:])
        dist.all_to_all_single(received, x.contiguous(), came, to)
        return received

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        return AllToAll.apply(gradient, ctx.came, ctx.to), None, None


class Shift(torch.autograd.Function):
    """Sends a tensor to the rank `step` after this one. Its gradient travels back."""

    @staticmethod
    def forward(ctx, x: Tensor, step: int) -> Tensor:
        ctx.step = step
        rank, size = dist.get_rank(), dist.get_world_size()
        x, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        # In one batch, because with NCCL, a send alone would wait for its receiver.
        operations = [
            dist.P2POp(dist.isend, x, (rank + step) % size),
            dist.P2POp(dist.irecv, received, (rank - step) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return Shift.apply(gradient, -ctx.step), None


def zigzag(sequence: int, device: torch.device) -> Tensor:
    """Return this rank's positions: of 2N chunks, chunk r and chunk 2N − 1 − r."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = torch.arange(sequence, device=device).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


Partial = tuple[Tensor, Tensor, Tensor]  # largest score; sum of exponentials; weighted values


def attend(q: Tensor, k: Tensor, v: Tensor, so_far: Partial, causal: bool = False) -> Partial:
    """Add the attention to a block of keys and values to a partial result (online softmax)."""
    highest, total, weighted = so_far
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    new = torch.maximum(highest, scores.amax(-1, keepdim=True)).detach()
    factor, weights = (highest - new).exp(), (scores - new).exp()
    return new, total * factor + weights.sum(-1, keepdim=True), weighted * factor + weights @ v


class RingAttention(models.Attention):
    """The model's attention for ranks that each have the tokens of `zigzag`."""

    def forward(self, x_BSH: Tensor) -> Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        q, *kv = (
            part.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for part in self.qkv(x_BSH).split(self.sections, dim=-1)
        )  # each (batch, heads, seq / ranks, head size)
        kv, half = torch.stack(kv), q.shape[2] // 2
        nothing = q.new_full((*q.shape[:3], 1), -torch.inf), torch.zeros_like(q[..., :1]), 0 * q
        result = attend(q, *kv, nothing, causal=True)  # the positions ascend
        for step in range(1, size):
            kv = Shift.apply(kv, 1)
            if step <= rank:  # from a lower rank: its first chunk is before both of ours
                result = attend(q, *kv[..., :half, :], result)
            else:  # from a higher rank: both of its chunks are before our second one
                early, late = zip(*(part.split(half, dim=2) for part in result), strict=True)
                late = attend(q[:, :, half:], *kv, late)
                result = tuple(map(torch.cat, zip(early, late, strict=True), [2] * 3))
        _, total, weighted = result
        return self.out((weighted / total).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """An MLP whose experts are spread over the ranks. Each token visits the `choices` best ones."""

    def __init__(self, hidden: int, experts: int, choices: int) -> None:
        super().__init__()
        self.total, self.choices, ranks = experts, choices, dist.get_world_size()
        self.router = nn.Linear(hidden, experts, bias=False)
        everyone = [  # every rank creates the same experts, and keeps its own
            nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
            for _ in range(experts)
        ]
        first = dist.get_rank() * experts // ranks
        self.own = nn.ModuleList(everyone[first : first + experts // ranks])

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_TH = x_BSH.flatten(0, 1)
        probabilities_TE = self.router(x_TH).softmax(-1)
        gates_Tk, experts_Tk = probabilities_TE.topk(self.choices)
        order = experts_Tk.flatten().argsort(stable=True)  # by expert, so also by rank
        counts = experts_Tk.flatten().bincount(minlength=self.total).view(-1, len(self.own))
        came = torch.empty_like(counts)  # row i: from rank i, for each of our experts
        dist.all_to_all_single(came, counts)
        splits = counts.sum(1).tolist(), came.sum(1).tolist()
        arrived = AllToAll.apply(x_TH[order // self.choices], *splits)
        numbers = torch.arange(len(self.own), device=came.device).repeat(len(came))
        expert = numbers.repeat_interleave(came.flatten())
        places = [(expert == i).nonzero().flatten() for i in range(len(self.own))]
        results = [own(arrived[place]) for own, place in zip(self.own, places, strict=True)]
        results = torch.cat(results)[torch.cat(places).argsort()]
        back = AllToAll.apply(results, *splits[::-1])[order.argsort()]
        self.balance, self.load = balance_loss(probabilities_TE, counts.flatten())
        weighted = back.unflatten(0, gates_Tk.shape) * gates_Tk.unsqueeze(-1)
        return weighted.sum(1).view_as(x_BSH)


def balance_loss(probabilities_TE: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the Switch Transformer, and each expert's part of all choices.

    The mean of the ranks' losses is the loss over the tokens of all ranks.
    """
    load_E = counts_E.float()
    dist.all_reduce(load_E)
    load_E /= load_E.sum()
    return len(load_E) * (load_E * probabilities_TE.mean(0)).sum(), load_E


class SplitGPT(models.GPT):
    """A GPT with experts instead of MLPs, in which each rank computes its own positions."""

    def __init__(self, config: models.GPTConfig, experts: int, choices: int) -> None:
        super().__init__(config)
        for block in self.blocks:
            block.attention = RingAttention(config)
            block.mlp = Experts(config.hidden_size, experts, choices)

    def forward(self, tokens_BS: Tensor, positions_S: Tensor) -> Tensor:
        x_BSH = self.tokens(tokens_BS) + self.positions(positions_S)
        for block in self.blocks:
            x_BSH = block(x_BSH)
        return self.unembed(self.norm(x_BSH))


def average(model: SplitGPT) -> None:
    """Turn the gradients into gradients of the mean loss over all ranks.

    An expert's gradient already has the terms of all ranks, because tokens came from all ranks.
    """
    own = {id(parameter) for block in model.blocks for parameter in block.mlp.own.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in own:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--experts", type=int, default=8, help="experts of each layer")
    parser.add_argument("--choices", type=int, default=2, help="experts that a token visits")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the balance loss")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    config = models.GPTConfig()
    if arguments.experts % world_size or config.sequence_length % (2 * world_size):
        raise SystemExit(
            f"{world_size}, the number of ranks, must divide --experts, and twice this number must "
            f"divide {config.sequence_length}, the length of a sequence"
        )
    torch.manual_seed(0)  # every rank creates the same model, and keeps its experts
    model = SplitGPT(config, arguments.experts, arguments.choices).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    positions = zigzag(config.sequence_length, device)

    length = config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        batch = batch.to(device)  # all ranks have the same samples
        optimizer.zero_grad()
        scores = model(batch[:, positions], positions)
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, positions + 1].flatten())
        balance = sum(block.mlp.balance for block in model.blocks)
        (loss + arguments.balance * balance).backward()
        recent += loss.detach() / 10
        average(model)
        optimizer.step()
        if step % 10 == 9:
            dist.all_reduce(recent)
            busiest = max(block.mlp.load.max().item() for block in model.blocks)
            if rank == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / world_size:.4f}")
                print(f"in the last one, {busiest:.0%} of the choices are for one expert")
            recent.zero_()

    if rank == 0:
        own = len(model.blocks[0].mlp.own)
        tokens = f"{len(positions)} of {config.sequence_length} tokens of each sequence"
        print(f"rank 0 holds {own} of {arguments.experts} experts of each layer, and {tokens}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
