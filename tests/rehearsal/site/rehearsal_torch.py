"""`torch.cuda` in Python, for the rehearsal's device."""

import contextlib
import os
import sys
import types

import rehearsal_copies
from rehearsal_streams import Event, Stream, current_stream, on_stream

GIB = 1 << 30
H200 = {
    "name": "Rehearsed H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "total_memory": 141 * GIB,
    "shared_memory_per_block_optin": 232448,
    "warp_size": 32,
    "L2_cache_size": 60 << 20,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
}


def change(torch):
    """Add the rehearsal's CUDA devices to torch."""
    torch.ops.load_library(os.environ["REHEARSAL_DEVICE"])
    own = torch.ops.rehearsal
    visible = os.environ["REHEARSAL_VISIBLE"].split(",")
    for name, value in (members(torch, own, visible) | memory(torch, own)).items():
        setattr(torch.cuda, name, value)
        if name in ("_exchange_device", "_maybe_exchange_device"):
            continue
        for module in ("memory", "random", "streams"):  # these have imported some of the names
            module = sys.modules.get(f"torch.cuda.{module}")
            if module is not None and hasattr(module, name):
                setattr(module, name, value)
    torch.version.cuda = "13.0"
    rehearsal_copies.change(torch, own)


def number_of(torch, device=None):
    """Return the number of a device, or of the current device if `device` has no number."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.ops.rehearsal.device() if index is None else index


def members(torch, own, visible):
    """Return devices, streams, and random numbers, by their names in `torch.cuda`."""

    def number(device=None):
        return number_of(torch, device)

    def exchange(device):
        before = own.device()
        if device >= 0:
            own.set_device(device)
        return before

    def properties(device=None):
        return types.SimpleNamespace(**H200, uuid=f"GPU-{visible[number(device)]}")

    def seed_all(seed):
        for generator in generators:
            generator.manual_seed(seed)

    generators = tuple(own.default_generator(index) for index in range(len(visible)))
    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: len(visible),
        "set_device": lambda device: own.set_device(number(device)),
        "current_device": own.device,
        "synchronize": lambda device=None: own.synchronize(number(device)),
        "_exchange_device": exchange,
        # This must be another function, because torch.compile has a table of both.
        "_maybe_exchange_device": lambda device: exchange(device),
        "get_device_name": lambda device=None: H200["name"],
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        "manual_seed": lambda seed: generators[own.device()].manual_seed(seed),
        "manual_seed_all": seed_all,
        "initial_seed": lambda: generators[own.device()].initial_seed(),
        "default_generators": generators,
        "get_rng_state": lambda device="cuda": generators[number(device)].get_state(),
        "set_rng_state": lambda state, device="cuda": generators[number(device)].set_state(state),
        "current_stream": lambda device=None: current_stream(number(device)),
        "default_stream": lambda device=None: Stream(number(device), stream_id=0),
        "stream": lambda stream: contextlib.nullcontext() if stream is None else on_stream(stream),
        "Stream": Stream,
        "Event": Event,
    }


def memory(torch, own):
    """Return the counts of the caching allocator, by their names in `torch.cuda`."""

    def live(device=None):
        return own.live(number_of(torch, device))

    def peak(device=None):
        return own.peak(number_of(torch, device))

    total = H200["total_memory"]
    return {
        "empty_cache": lambda: None,
        "memory_allocated": live,
        "memory_reserved": live,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "reset_peak_memory_stats": lambda device=None: own.reset_peak(number_of(torch, device)),
        "mem_get_info": lambda device=None: (total - live(device), total),
    }
