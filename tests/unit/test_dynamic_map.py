"""The levels of 8-bit states, and the library that lab 08 compares with."""

import logging
import sys

import pytest
import torch
from torch import nn

from parlab.formats.dynamic import dynamic_map
from parlab.libraries import memory


@pytest.mark.parametrize("signed", [True, False])
def test_the_levels_are_those_of_bitsandbytes(signed: bool) -> None:
    parameter = nn.Parameter(torch.zeros(10))
    optimizer = memory.adam_8bit([parameter], lr=1.0)
    parameter.grad = torch.ones(10)
    optimizer.step()
    right = optimizer.state[parameter]["qmap1" if signed else "qmap2"]
    assert torch.equal(dynamic_map(signed), right)
    first, second = memory.codes(optimizer, parameter)
    assert first.unique().tolist() == second.unique().tolist() == [255]


def test_a_change_to_the_levels_does_not_last() -> None:
    dynamic_map(True).zero_()
    assert dynamic_map(True)[-1] == 1


def test_a_missing_bitsandbytes_has_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModuleNotFoundError, match="bitsandbytes is not installed"):
        memory.adam_8bit([nn.Parameter(torch.zeros(1))], lr=1.0)
    assert logging.getLogger("bitsandbytes.backends.cpu.ops").level == logging.NOTSET
