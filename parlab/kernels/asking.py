"""Whether kernels are interpreted here: asks Triton for it where there is no GPU."""

import importlib
import os
import sys

import torch

INTERPRETED = torch.cuda.device_count() == 0

if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    if "triton.language" in sys.modules:
        # Somebody was earlier: torch is, at an optimizer's first step. Triton's own functions, such
        # as `tl.sum`, were made for a GPU then, and are made anew.
        for name in ("triton.language.standard", "triton.language.random", "triton.language"):
            importlib.reload(sys.modules[name])
