"""A layer of experts on one rank that has the tokens of all ranks, and what mistakes compute."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parlab.checks.all_to_all import _experts as experts
from parlab.checks.base.draw import Draw


class Expert(nn.Module):
    """A small MLP with biases that records the shapes of its inputs."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        return self.narrow(torch.tanh(self.wide(x)))


@dataclass
class Layer:
    """The whole layer. The functions below get the tokens of each rank, in a list."""

    router: nn.Linear
    experts: list[Expert]
    k: int
    capacity: int

    def copied(self) -> tuple[nn.Linear, list[Expert]]:
        router, copies = copy.deepcopy((self.router, self.experts))
        for expert in copies:
            expert.shapes.clear()
        return router, copies

    def probabilities(self, x_TH: Tensor) -> Tensor:
        return self.router(x_TH).softmax(-1)

    def routings(self, tokens: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [experts.routed(self.probabilities(x), self.k, self.capacity) for x in tokens]

    def output(self, x_TH: Tensor, gated_TH: Tensor, routing: tuple[Tensor, Tensor]) -> Tensor:
        """Return the layer's output (T, H) on one rank; `gated_TH` is what the router gets."""
        probabilities_TE, y_TH = self.probabilities(gated_TH), torch.zeros_like(x_TH)
        kept = experts.kept(*routing)
        for number, expert in enumerate(self.experts):
            rows = torch.tensor([t for t, _, e, _ in kept if e == number], dtype=torch.int64)
            gates = probabilities_TE[rows, number].unsqueeze(1)
            y_TH = y_TH.index_add(0, rows, gates * expert(x_TH[rows]))
        return y_TH

    def exchanged(
        self, tokens: Sequence[Tensor], mixed_to: bool, mixed_back: bool, sent_back: bool
    ) -> list[Tensor]:
        """Return the outputs by rank, computed with slots and exchanges, and with mistakes.

        Args:
            mixed_to, mixed_back: whether ranks and experts are mixed up after an exchange, or
                before the one back.
            sent_back: whether there is an exchange back.
        """
        n, routings = len(tokens), self.routings(tokens)
        sent = torch.zeros(n, len(self.experts), self.capacity, tokens[0].shape[1]).double()
        for rank, (x_TH, routing) in enumerate(zip(tokens, routings, strict=True)):
            for token, _, expert, slot in experts.kept(*routing):
                sent[rank, expert, slot] = x_TH[token]
        sent = sent.unflatten(1, (n, -1))  # (N of the tokens, N of the experts, E/N, C, H)
        back = []
        for rank in range(n):
            arrived, own = sent[:, rank], len(self.experts) // n
            rows = arrived if mixed_to else arrived.transpose(0, 1)
            rows = rows.reshape(own, n * self.capacity, -1)
            here = self.experts[rank * own : (rank + 1) * own]
            results = torch.stack([e(r) for e, r in zip(here, rows, strict=True)])
            if mixed_back:
                back.append(results.reshape(arrived.shape))
            else:
                back.append(results.unflatten(1, (n, -1)).transpose(0, 1))
        whole = torch.stack(back)  # (N of the experts, N of the tokens, E/N, C, H)
        outputs = []
        for rank, (x_TH, routing) in enumerate(zip(tokens, routings, strict=True)):
            y_ECH = (whole[:, rank] if sent_back else whole[rank]).flatten(0, 1)
            y_TH, probabilities_TE = torch.zeros_like(x_TH), self.probabilities(x_TH)
            for token, _, expert, slot in experts.kept(*routing):
                y_TH[token] += probabilities_TE[token, expert] * y_ECH[expert, slot]
            outputs.append(y_TH)
        return outputs


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
    x_through_gates: Tensor  # the part of the gradient of x that does not go through experts
    router: list[dict[str, Tensor]]  # by rank
    experts: list[dict[str, Tensor]]  # of all experts


def passed(layer: Layer, tokens: Sequence[Tensor], gradients: Sequence[Tensor], rank: int) -> Right:
    """Run both passes of the layer on the tokens of all ranks.

    The loss of a rank is Σ (output · gradient) + Σ probabilities².
    """
    leaves = [x.clone().requires_grad_() for x in tokens]
    gated = [x.clone().requires_grad_() for x in tokens]
    of_router = []
    routings = layer.routings(tokens)
    for x_TH, gated_TH, routing, gradient in zip(leaves, gated, routings, gradients, strict=True):
        y_TH = layer.output(x_TH, gated_TH, routing)
        ((y_TH * gradient).sum() + layer.probabilities(gated_TH).square().sum()).backward()
        of_router.append({n: p.grad.clone() for n, p in layer.router.named_parameters()})
        layer.router.zero_grad()
    with torch.no_grad():
        output = layer.output(tokens[rank], tokens[rank], routings[rank])
        probabilities_TE = layer.probabilities(tokens[rank])
    return Right(
        output,
        (probabilities_TE, routings[rank][0]),
        leaves[rank].grad + gated[rank].grad,
        gated[rank].grad,
        of_router,
        [{n: p.grad for n, p in expert.named_parameters()} for expert in layer.experts],
    )


def wrong_outputs(
    layer: Layer, tokens: Sequence[Tensor], rank: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the output of each mistake on a rank."""
    with torch.no_grad():
        for mixed in ((True, False), (False, True), (True, True)):
            yield "mixed_up", layer.exchanged(tokens, *mixed, sent_back=True)[rank]
        yield "not_sent_back", layer.exchanged(tokens, False, False, sent_back=False)[rank]
        together = experts.routed(
            torch.cat([layer.probabilities(x) for x in tokens]), layer.k, layer.capacity
        )
        sizes = [len(x) for x in tokens]
        one_queue = tuple(part.split(sizes)[rank] for part in together)
        fewer = max(layer.capacity // len(tokens), 1)
        fewer_slots = experts.routed(layer.probabilities(tokens[rank]), layer.k, fewer)
        for routing in (one_queue, fewer_slots):
            yield "capacity_of_all_ranks", layer.output(tokens[rank], tokens[rank], routing)
