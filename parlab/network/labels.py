"""Says of texts and pictures that they come from an emulated network; and which one it is."""

import functools
import json
import os

from parlab.costs.networks import Network

# Set for ranks that were started on an emulated network, with its description.
VARIABLE = "PARLAB_NETWORK"


def emulated(text: str) -> str:
    """The name of an axis, a row or a picture, for times on an emulated network."""
    return f"emulated {text}"


def time_label(text: str) -> str:
    """`text`, as `emulated` names it where this rank was started on an emulated network."""
    return emulated(text) if network_of_rank() else text


def rank_environment(network: Network) -> dict[str, str]:
    """Variables for ranks that are started on `network`; their tensors are on the CPU."""
    return {VARIABLE: json.dumps(network.as_dict()), "CUDA_VISIBLE_DEVICES": ""}


def network_of_rank() -> Network | None:
    """The network that this rank was started on, if any."""
    return _read(os.environ.get(VARIABLE, ""))


@functools.cache
def _read(text: str) -> Network | None:
    return Network.from_dict(json.loads(text)) if text else None
