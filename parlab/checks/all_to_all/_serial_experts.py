"""A layer of experts on one rank that has the tokens of all ranks."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.base.draw import Draw


class Expert(nn.Module):
    """A small MLP with biases that records its inputs."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x.detach())
        return self.narrow(torch.tanh(self.wide(x)))


@dataclass
class Layer:
    """The whole layer."""

    router: nn.Linear
    experts: list[Expert]
    k: int
    capacity: int

    def probabilities(self, x_TH: Tensor) -> Tensor:
        return self.router(x_TH).softmax(-1)

    def output(self, x_TH: Tensor, probabilities_TE: Tensor, experts_Tk: Tensor) -> Tensor:
        """Return the output (T, H) for the tokens of one rank."""
        _, slots_Tk = experts.routed(probabilities_TE, self.k, self.capacity)
        y_TH, kept = torch.zeros_like(x_TH), experts.kept(experts_Tk, slots_Tk)
        for number, expert in enumerate(self.experts):
            rows = torch.tensor([t for t, _, e, _ in kept if e == number], dtype=torch.int64)
            gates = probabilities_TE[rows, number].unsqueeze(1)
            y_TH = y_TH.index_add(0, rows, gates * expert(x_TH[rows]))
        return y_TH


def drawn(draw: Draw, n_experts: int, k: int, capacity: int, hidden: int) -> Layer:
    """Draw a layer in float64, the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        router = nn.Linear(hidden, n_experts).double()
        made = [Expert(hidden, 5).double() for _ in range(n_experts)]
        for p in router.parameters():
            nn.init.normal_(p)
    return Layer(router, made, k, capacity)


@dataclass
class Right:
    """What a rank must have: its output, probabilities, and experts; and its gradients by name."""

    output: Tensor
    last: tuple[Tensor, Tensor]
    x: Tensor
    router: list[dict[str, Tensor]]  # by rank
    experts: list[dict[str, Tensor]]  # of all experts
    rows: list[Tensor]  # what each expert gets from all ranks


def passed(layer: Layer, tokens: Sequence[Tensor], gradients: Sequence[Tensor], rank: int) -> Right:
    """Run both passes of a copy of the layer on the tokens of all ranks.

    The loss of a rank is Σ (output · gradient) + Σ probabilities².
    """
    layer = copy.deepcopy(layer)
    leaves = [x.clone().requires_grad_() for x in tokens]
    of_router, results = [], []
    for x_TH, gradient in zip(leaves, gradients, strict=True):
        probabilities_TE = layer.probabilities(x_TH)
        experts_Tk, _ = experts.routed(probabilities_TE, layer.k, layer.capacity)
        y_TH = layer.output(x_TH, probabilities_TE, experts_Tk)
        ((y_TH * gradient).sum() + probabilities_TE.square().sum()).backward()
        results.append((y_TH.detach(), (probabilities_TE.detach(), experts_Tk)))
        of_router.append({n: p.grad.clone() for n, p in layer.router.named_parameters()})
        layer.router.zero_grad()
    return Right(
        *results[rank],
        leaves[rank].grad,
        of_router,
        [{n: p.grad for n, p in expert.named_parameters()} for expert in layer.experts],
        [torch.cat(expert.inputs) for expert in layer.experts],
    )
