"""Whether kernels are interpreted: selects Triton's interpreter if there is no GPU."""

import importlib
import os
import sys

import torch

# A rank whose GPU does not work hides it (`parlab.rank.devices`), but torch has counted it already.
INTERPRETED = torch.cuda.device_count() == 0 or os.environ.get("CUDA_VISIBLE_DEVICES") == ""

if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    if "triton.language" in sys.modules:
        # Another module has imported Triton before, as torch does at an optimizer's first step.
        # Functions such as `tl.sum` were made for a GPU then: make them again.
        for name in ("triton.language.standard", "triton.language.random", "triton.language"):
            importlib.reload(sys.modules[name])
