"""Remote procedure calls: a small GPT whose embedding is divided among several processes.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 2 --local-addr 127.0.0.1 examples/10_rpc.py
    srun torchrun --nnodes 2 --nproc-per-node 1 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/10_rpc.py

Only process 0 runs the training loop. The rows of the embedding are divided among all processes, as
in a parameter server. Process 0 has a remote reference to each part, and calls its methods.
Distributed autograd follows the calls back and stores the gradients where the parameters are. The
distributed optimizer updates the parameters there. Everything runs on CPUs.
"""

import argparse
import logging
import os
import warnings

import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from parlab import models
from parlab.data import text

# This module compiles torch's own optimizers with TorchScript, and warns that it is deprecated.
logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)


class Adam(torch.optim.Adam):
    """Adam under a name that the distributed optimizer does not compile."""


class Rows(nn.Module):
    """Every N-th row of an embedding, in the process that created it."""

    def __init__(self, rows: int, hidden: int, number: int, processes: int) -> None:
        super().__init__()
        self.number, self.processes = number, processes
        table = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(0.02 * table[number::processes])  # the same table everywhere

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return the embeddings of the tokens whose rows are here, and zeros for others."""
        here = tokens_BS % self.processes == self.number
        return F.embedding(tokens_BS // self.processes * here, self.weight) * here.unsqueeze(-1)

    def count(self) -> int:
        return len(self.weight)

    def reference(self) -> rpc.RRef:
        return rpc.RRef(self.weight)

    def gradient_norm(self, context: int) -> float:
        """Return the norm of the gradient that distributed autograd has left here."""
        return dist_autograd.get_gradients(context)[self.weight].norm().item()


class RemoteEmbedding(nn.Module):
    """An embedding whose rows are divided among the processes."""

    def __init__(self, rows: int, hidden: int, processes: int) -> None:
        super().__init__()
        self.parts = [
            rpc.remote(f"process_{i}", Rows, (rows, hidden, i, processes)) for i in range(processes)
        ]

    def forward(self, tokens_BS: Tensor) -> Tensor:
        futures = [part.rpc_async().forward(tokens_BS) for part in self.parts]  # all at once
        return torch.stack([future.wait() for future in futures]).sum(0)

    def references(self) -> list[rpc.RRef]:
        return [part.rpc_sync().reference() for part in self.parts]


def start_process() -> None:
    """Join the processes that torchrun started, under the name `process_RANK`."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
        for name in ("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")  # the machine's own name may not be resolvable
    torch.set_num_threads(1)  # otherwise, the processes would compete for cores
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using a Backend")  # rpc's own
        rpc.init_rpc(f"process_{rank}", rank=rank, world_size=count)


def train(steps: int, batch_size: int, processes: int) -> None:
    """Train from process 0. The other processes only answer calls."""
    torch.manual_seed(0)
    config = models.GPTConfig()
    model = models.GPT(config)
    model.unembed.weight = nn.Parameter(model.tokens.weight.detach().clone())  # no longer tied
    model.tokens = RemoteEmbedding(config.vocab_size, config.hidden_size, processes)
    own = [rpc.RRef(parameter) for parameter in model.parameters()]
    optimizer = DistributedOptimizer(Adam, own + model.tokens.references(), lr=3e-3)

    length = config.sequence_length + 1
    windows = torch.from_numpy(text("train", steps * batch_size * length)).long()
    recent = 0.0  # the mean loss of the last ten steps
    for step, batch in enumerate(windows.view(steps, batch_size, length), start=1):
        with dist_autograd.context() as context:  # keeps the gradients of one step
            scores = model(batch[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            dist_autograd.backward(context, [loss])
            norms = [part.rpc_sync().gradient_norm(context) for part in model.tokens.parts]
            optimizer.step(context)
        recent += loss.item() / 10
        if step % 10 == 0:
            shown = ", ".join(f"{norm:.3f}" for norm in norms)
            print(f"steps {step - 9} to {step}: loss {recent:.4f}")
            print(f"norms of the remote gradients in the last step: {shown}")
            recent = 0.0
    for part in model.tokens.parts:
        print(f"{part.owner_name()} holds {part.rpc_sync().count()} rows of the embedding")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()

    start_process()
    if rpc.get_worker_info().id == 0:
        train(arguments.steps, arguments.global_batch, int(os.environ["WORLD_SIZE"]))
    rpc.shutdown()  # waits until no process needs another one


if __name__ == "__main__":
    main()
