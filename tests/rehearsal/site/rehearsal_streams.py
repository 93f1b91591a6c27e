"""`torch.cuda.Stream` and `torch.cuda.Event`.

Operations run when they are called, but the host must wait before it may use results, and one
stream must wait for another (device/streams.h). The time of an event is the time of its `record`.
"""

import contextlib
import time

import torch


def native(stream):
    """Return the stream as torch's C++ code represents it."""
    return torch.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=1)


class Stream:
    """A stream. It is new unless `stream_id` is given."""

    device_type = 1

    def __init__(self, device=None, priority=0, stream_id=None, **_):
        own = torch.ops.rehearsal
        index = device if isinstance(device, int) else None
        if device is not None and index is None:
            index = torch.device(device).index
        self.device_index = own.device() if index is None else index
        self.device = torch.device("cuda", self.device_index)
        self.stream_id = own.new_stream() if stream_id is None else stream_id
        self.cuda_stream = self.stream_id

    def __eq__(self, other):
        own = (self.device_index, self.stream_id)
        return isinstance(other, Stream) and own == (other.device_index, other.stream_id)

    def __hash__(self):
        return hash((self.device_index, self.stream_id))

    def __enter__(self):
        self._context = on_stream(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error):
        self._context.__exit__(*error)

    def query(self):
        return native(self).query()

    def synchronize(self):
        native(self).synchronize()

    def wait_stream(self, other):
        native(self).wait_stream(native(other))

    def wait_event(self, event):
        event.wait(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event. Without `enable_timing`, it has no time."""

    def __init__(self, enable_timing=False, **_):
        self._timed, self._at, self._event = enable_timing, None, None

    def record(self, stream=None):
        stream = stream or current_stream(torch.ops.rehearsal.device())
        self._event = torch.Event("cuda")
        self._event.record(native(stream))
        self._at = time.perf_counter()

    def elapsed_time(self, other):
        """Return milliseconds. Raises RuntimeError, as CUDA does, if the host has not waited."""
        for event in (self, other):
            if not event._timed or event._event is None:
                raise RuntimeError("CUDA error: invalid resource handle")
            if not event.query():
                raise RuntimeError("CUDA error: device not ready")
        return (other._at - self._at) * 1e3

    def query(self):
        return self._event is None or self._event.query()

    def synchronize(self):
        if self._event is not None:
            self._event.synchronize()

    def wait(self, stream=None):
        stream = stream or current_stream(torch.ops.rehearsal.device())
        if self._event is not None:
            self._event.wait(native(stream))


def current_stream(device):
    return Stream(device, stream_id=torch.ops.rehearsal.stream(device))


@contextlib.contextmanager
def on_stream(stream):
    """Make `stream` the current stream, and its device the current device."""
    own = torch.ops.rehearsal
    device, before = own.device(), own.stream(stream.device_index)
    own.set_device(stream.device_index)
    own.set_stream(stream.device_index, stream.stream_id)
    try:
        yield
    finally:
        own.set_stream(stream.device_index, before)
        own.set_device(device)
