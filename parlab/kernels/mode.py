"""Selects Triton's interpreter if there is no GPU."""

import importlib
import os
import sys

import torch

# A rank hides a GPU that does not work (`parlab.rank.devices`), but torch has already counted it.
INTERPRETED = torch.cuda.device_count() == 0 or os.environ.get("CUDA_VISIBLE_DEVICES") == ""

if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    if "triton.language" in sys.modules:
        # Another module has imported Triton before, as torch does in an optimizer's first step.
        # Functions such as `tl.sum` were then made for a GPU, so import their modules again.
        for name in ("triton.language.standard", "triton.language.random", "triton.language"):
            importlib.reload(sys.modules[name])
