"""8-bit Adam from bitsandbytes, which is imported at the first call."""

import logging
from collections.abc import Iterable
from types import ModuleType

import torch
from torch import Tensor, nn


def adam_8bit(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Make a `bitsandbytes.optim.Adam8bit` that quantizes all states, however small.

    By default, tensors of fewer than 4,096 numbers keep their states in float32.

    Raises:
        ModuleNotFoundError: bitsandbytes is not installed.
    """
    return _bitsandbytes().optim.Adam8bit(parameters, lr=lr, min_8bit_size=1)


def codes(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
    """Return the 8-bit codes of a parameter's first and second moment, both flat and uint8."""
    state = optimizer.state[parameter]
    return state["state1"].flatten(), state["state2"].flatten()


def _bitsandbytes() -> ModuleType:
    # On CPUs with AVX-512, it warns that a kernel for 4-bit products is missing.
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import bitsandbytes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "bitsandbytes is not installed here, and this comparison needs it. Run "
            "`pip install bitsandbytes`, or skip this cell: no exercise depends on it"
        ) from error
    finally:
        logger.setLevel(level)
    return bitsandbytes
