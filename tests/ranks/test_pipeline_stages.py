"""A rank's share of a model, and the record of its passes."""

import itertools

import pytest
import torch
from torch import nn

from parlab import models
from parlab.pipeline import backward, forward
from parlab.pipeline.recorded import record
from parlab.pipeline.stages import layers_of, share_of
from parlab.timeline import Timeline


def stages() -> list[nn.Module]:
    return [nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 6)]


def test_a_rank_has_every_pth_stage() -> None:
    made = stages()
    share = share_of(made, torch.zeros(1, 2), 1, 2)
    assert share.count == 4
    assert share.own == {1: made[1], 3: made[3]}
    assert [tuple(p.shape) for p in share.parameters()] == [(4, 3), (4,), (6, 5), (6,)]


def test_stages_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks do not divide 4 stages"):
        share_of(stages(), torch.zeros(1, 2), 0, 3)


def test_receive_buffers_have_the_size_of_the_message() -> None:
    share = share_of(stages(), torch.zeros(1, 2), 0, 2)
    assert share.room(forward(2, 0), 7).shape == (7, 4)
    assert share.room(backward(2, 0), 7).shape == (7, 5)
    assert share.room(backward(0, 0), 1).shape == (1, 3)


def test_numbers_of_actions_differ() -> None:
    share = share_of(stages(), torch.zeros(1, 2), 0, 2)
    actions = [make(s, i) for s in range(4) for i in range(9) for make in (forward, backward)]
    assert sorted(map(share.number, actions)) == list(range(len(actions)))


def test_sizes_are_found_without_a_trace() -> None:
    """The stages do not count a batch or draw a random number."""
    norm, dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)
    state = torch.get_rng_state()
    share = share_of([norm, dropout, nn.Identity()], torch.ones(1, 3), 0, 1)
    assert norm.num_batches_tracked == 0 and norm.training
    assert torch.equal(torch.get_rng_state(), state)
    assert [tuple(x.shape) for x in share.inputs] == [(1, 3)] * 3


def test_the_layers_of_a_gpt_are_the_gpt() -> None:
    torch.manual_seed(0)
    model = models.GPT(models.GPTConfig(hidden_size=8, heads=2, layers=3))
    layers = layers_of(model)
    tokens = torch.randint(256, (2, 5))
    assert torch.equal(nn.Sequential(*layers)(tokens), model(tokens))
    assert layers[0].tokens.weight is layers[-1].unembed.weight
    assert len(layers) == 5


class Alone:
    """A communicator of one rank."""

    rank, size = 0, 1

    def allgather(self, value: object) -> list:
        return [value]

    def Split_type(self, kind: int) -> "Alone":
        return self

    def allreduce(self, value: bool, op: object) -> bool:
        return value

    def Free(self) -> None:
        pass


def test_passes_are_recorded_by_micro_batch() -> None:
    share = share_of([nn.Linear(2, 2)], torch.zeros(1, 2), 0, 1)
    timeline = Timeline(Alone())
    record(share, timeline, 1, 2)
    for _ in range(2):  # steps
        outputs = [share.own[0](torch.ones(1, 2)) for _ in range(2)]
        for output in reversed(outputs):
            output.sum().backward()
    spans = timeline.gather()
    assert [span.name for span in spans] == 2 * ["F0", "F1", "B1", "B0"]
    assert all(a.end <= b.start for a, b in itertools.pairwise(spans))


def test_recorded_stages_compute_what_they_did() -> None:
    share = share_of([nn.Linear(2, 2)], torch.zeros(1, 2), 0, 1)
    plain, x = share.own[0], torch.ones(3, 2)
    plain(x).square().sum().backward()
    right = [p.grad.clone() for p in plain.parameters()]
    plain.zero_grad()
    record(share, Timeline(Alone()), 1, 1)
    share.own[0](x).square().sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(plain.parameters(), right, strict=True))
