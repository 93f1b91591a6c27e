"""Labels texts and pictures that come from an emulated network, and finds this rank's network."""

import functools
import json
import os

from parlab.costs.networks import Network

# The variable with the network's description, set for ranks that were started on one.
VARIABLE = "PARLAB_NETWORK"


def emulated(text: str) -> str:
    """Return the label of an axis, a row, or a picture, for times on an emulated network."""
    return f"emulated {text}"


def time_label(text: str) -> str:
    """Return `emulated(text)` if this rank was started on an emulated network, otherwise `text`."""
    return emulated(text) if network_of_rank() else text


def rank_environment(network: Network) -> dict[str, str]:
    """Return the variables for ranks that are started on `network`, which use only the CPU."""
    return {VARIABLE: json.dumps(network.as_dict()), "CUDA_VISIBLE_DEVICES": ""}


def network_of_rank() -> Network | None:
    """Return the emulated network on which this rank was started, or None."""
    return _read(os.environ.get(VARIABLE, ""))


@functools.cache
def _read(text: str) -> Network | None:
    return Network.from_dict(json.loads(text)) if text else None
