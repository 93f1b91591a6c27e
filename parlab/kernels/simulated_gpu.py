"""A simulated GPU with its own clock, on which a benchmark can be tried anywhere.

gpu = SimulatedGPU()
step = gpu.optimizer("fused", seconds=2e-3)(gpu.make_parameters())
step()                   # returns after some microseconds, as a launch does
gpu.synchronize()        # moves the clock to the end of the work
gpu.clock()              # seconds
gpu.events               # what happened, in order
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

LAUNCH = 5e-6  # seconds that the host needs to start a step


@dataclass(frozen=True)
class Event:
    """One call.

    Attributes:
        kind: "parameters", "optimizer", "step", "clock", or "synchronize".
        name: of the optimizer, for its creation and its steps.
        time: the host's time after the call, in seconds.
        busy: True if the GPU still has work at that time.
        parameters: the new parameters, or those that an optimizer got.
    """

    kind: str
    name: str
    time: float
    busy: bool
    parameters: Any = None


class SimulatedGPU:
    """A GPU with a queue of steps, which run one after the other.

    An optimizer's first step takes longer, because it creates states and compiles kernels. The GPU
    becomes slower while it works, as if it got hot, and some steps are interrupted.
    """

    def __init__(self, interrupted: Collection[int] = (), slower: float = 0.0) -> None:
        """`interrupted` has numbers of steps. Each second of work slows later ones by `slower`."""
        self.events: list[Event] = []
        self._interrupted, self._slower = interrupted, slower
        self._now = self._end = self._worked = 0.0
        self._steps = 0

    def clock(self) -> float:
        """Return the seconds since an arbitrary moment, like `time.perf_counter`."""
        self._add("clock")
        return self._now

    def synchronize(self) -> None:
        """Wait until the GPU has finished its work, like `torch.cuda.synchronize`."""
        self._now = max(self._now, self._end)
        self._add("synchronize")

    def make_parameters(self) -> list[str]:
        """Return a new list that represents parameters, which the GPU fills with numbers."""
        made = ["weights", "biases"]
        self._launch(1e-3)
        self._add("parameters", parameters=made)
        return made

    def optimizer(
        self, name: str, seconds: float, first: float = 0.5
    ) -> Callable[[list[str]], Callable[[], None]]:
        """Return a function that takes parameters and returns a step.

        A step takes `seconds`, and the first one `first` in addition.
        """

        def make(parameters: list[str]) -> Callable[[], None]:
            self._add("optimizer", name, parameters)
            extra = [first]

            def step() -> None:
                self._steps += 1
                factor = 9 if self._steps in self._interrupted else 1
                self._launch(seconds * factor + (extra.pop() if extra else 0.0))
                self._add("step", name)

            return step

        return make

    def _launch(self, seconds: float) -> None:
        self._now += LAUNCH
        seconds *= 1 + self._slower * self._worked
        self._worked += seconds
        self._end = max(self._now, self._end) + seconds

    def _add(self, kind: str, name: str = "", parameters: Any = None) -> None:
        self.events.append(Event(kind, name, self._now, self._end > self._now, parameters))
