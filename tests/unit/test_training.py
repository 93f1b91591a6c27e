"""The plain loop and the batches that labs compare their parallel runs with."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from parlab import models, training


def test_batches_of_images_end_with_a_smaller_one() -> None:
    batches = training.mnist_batches(10, 4)
    assert [tuple(images.shape) for images, _ in batches] == [
        (4, 1, 28, 28), (4, 1, 28, 28), (2, 1, 28, 28)
    ]  # fmt: skip
    assert [len(labels) for _, labels in batches] == [4, 4, 2]


def test_targets_of_text_are_the_tokens_that_follow() -> None:
    batches = training.text_batches(3, 2, 5)
    assert len(batches) == 3
    for tokens, targets in batches:
        assert tokens.shape == targets.shape == (2, 5)
        assert tokens.dtype == torch.int64
        assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_losses_are_computed_before_each_step() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    batch = torch.ones(1, 1), torch.zeros(1, 1)
    halve = partial(torch.optim.SGD, lr=0.25)
    losses = training.plain_losses(model, halve, [batch] * 3, nn.functional.mse_loss)
    assert losses == [1.0, 0.25, 0.0625]


@pytest.mark.parametrize("name", training.GPT_OPTIMIZERS)
def test_the_gpt_learns_with_its_settings(name: str) -> None:
    torch.manual_seed(0)
    losses = training.plain_losses(
        models.GPT(),
        training.GPT_OPTIMIZERS[name],
        training.text_batches(12, 8, 32),
        training.token_loss,
    )
    assert losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert losses[-1] < losses[0] - 0.5


def test_runs_are_compared_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"one rank": [2.0, 1.0], "near": [2.0, 1.01], "far": [2.0, 1.2], "lost": [2.0, math.nan]}
    training.print_same({"SGD": runs}, 0.1)
    assert capsys.readouterr().out.splitlines() == [
        "SGD: same losses in each step, near and one rank: True",
        "SGD: same losses in each step, far and one rank: False",
        "SGD: same losses in each step, lost and one rank: False",
    ]


def test_runs_of_other_lengths_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="size"):
        training.largest_gap([1.0, 2.0, 3.0], [1.0, 2.0])
