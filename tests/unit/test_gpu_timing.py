"""The benchmarks of kernels measure the GPU's time, on a simulated GPU: `benchmarks.gpu`."""

from collections import deque
from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks import gpu

QUEUE = 1000  # kernels that a GPU's queue holds
CYCLES_PER_SECOND = 2e9


class SimulatedGPU:
    """The times of the host and of a GPU that runs kernels from a queue, in seconds."""

    def __init__(self) -> None:
        self.now = self.end = 0.0
        self.ends: deque[float] = deque([0.0] * QUEUE, QUEUE)  # of the latest kernels

    def sleep(self, cycles: int) -> None:
        self.start(cycles / CYCLES_PER_SECOND)

    def start(self, seconds: float) -> None:
        self.now = max(self.now, self.ends[0])  # the host waits for a place in the queue
        self.end = max(self.now, self.end) + seconds
        self.ends.append(self.end)

    def call(
        self, host: float, seconds: float, kernels: int = 1, waits: bool = False
    ) -> Callable[[], None]:
        """Return a call that takes these times, and perhaps waits for the GPU."""

        def called() -> None:
            for _ in range(kernels):
                self.now += host / kernels
                self.start(seconds / kernels)
            if waits:
                self.now = max(self.now, self.end)

        return called


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGPU]:
    """A simulated GPU in place of torch's."""
    device = SimulatedGPU()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = max(device.now, device.end)

        def query(self) -> bool:
            return self.at <= device.now

        def synchronize(self) -> None:
            device.now = max(device.now, self.at)

        def elapsed_time(self, other: "Event") -> float:
            return 1e3 * (other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", device.sleep)
    yield device


@pytest.mark.parametrize(
    ("host", "seconds", "kernels"),
    [
        pytest.param(150e-6, 8e-6, 1, id="adam of 1 M parameters"),
        pytest.param(2e-3, 8e-6, 14, id="slow to start, in several kernels"),
        pytest.param(10e-6, 9e-3, 1, id="a large product"),
        pytest.param(90e-6, 1e-4, 90, id="more kernels than the queue holds"),
    ],
)
def test_only_the_gpus_time_counts(
    host: float, seconds: float, kernels: int, simulated: SimulatedGPU
) -> None:
    calls = [simulated.call(host, seconds, kernels)] * 3
    sample = gpu.timed(calls, seconds, small=False)
    assert [sample() for _ in range(3)] == pytest.approx([seconds] * 3)


def test_waiting_for_the_gpu_counts(simulated: SimulatedGPU) -> None:
    sample = gpu.timed([simulated.call(1e-4, 1e-5, waits=True)], 1e-5, small=False)
    assert sample() == pytest.approx(1.1e-4, rel=0.05)
