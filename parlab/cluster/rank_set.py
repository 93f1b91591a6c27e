"""One set of ranks, from its start to its end: processes, and the connections to them."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import ipyparallel as ipp

from parlab.cluster import gpus, nodes
from parlab.cluster.channel import Channel
from parlab.cluster.errors import ClusterError
from parlab.cluster.import_time import LIMIT_SECONDS
from parlab.cluster.launchers import has_ended
from parlab.cluster.processes import ControllerFailed, Processes
from parlab.profiles.slurm import Job

POLL_SECONDS = 0.2
MESSAGE_SECONDS = 60.0  # for first messages between nodes


class Begun(NamedTuple):
    """What a rank answers first; `failed` has imports, by statement, kind of error, and text."""

    rank: int
    size: int
    failed: list[tuple[str, str, str]]
    device: gpus.RankDevice


def _begin(imports: list[str]) -> Begun:
    """First call on each rank: show errors by the learner's lines, and make imports again."""
    from IPython import get_ipython

    from parlab.rank.engine import (
        broken_state,
        cell_magics,
        children,
        interrupts,
        output_limit,
        refused_input,
        tracebacks,
    )
    from parlab.rank.world import comm

    shell = get_ipython()
    shell.autoawait = False  # a cell with `await` would never be said to have ended
    tracebacks.install(shell)
    cell_magics.install(shell)
    interrupts.install(shell.kernel)
    refused_input.install(shell.kernel)
    broken_state.install(shell)
    output_limit.install(shell)
    children.install(shell)
    failed = []
    for statement in imports:
        try:
            exec(statement, shell.user_ns)
        except Exception as error:  # in the lab as well, or its folder was put on `sys.path` there
            failed.append((statement, type(error).__name__, str(error)))
    return Begun(comm.rank, comm.size, failed, gpus.device_of_rank())


class RankSet:
    """`n` ranks that start in the background; `on_change` is called when they are there, or end."""

    def __init__(
        self,
        n: int,
        profile: str | None,
        environment: Mapping[str, str],
        imports: list[str],
        on_change: Callable[[], None],
    ) -> None:
        self.n = n
        self._on_change = on_change
        self.generation = 0  # how often the ranks were freed
        self.description = ""  # of the nodes of a profile
        self.devices: list[gpus.RankDevice] = []  # of the ranks, once they are there
        self.failed_imports: list[tuple[str, str, str]] = []  # statement, kind of error, text
        self._profile = profile
        self._environment = environment
        self._ended = threading.Event()
        self._imports = imports
        self._make_processes()
        self._client: Future[ipp.Client] = Future()
        self._client.add_done_callback(lambda _: on_change())
        self._starting = threading.Thread(target=self._start, name="parlab-start", daemon=True)
        self._starting.start()

    def _make_processes(self) -> None:
        everywhere = self._profile is not None
        self.channel = Channel(lambda process: self._on_change(), everywhere=everywhere)
        try:
            self._processes = Processes(
                self.n, self._profile, self.channel, self._environment, self._ended
            )
        except BaseException:
            self.channel.close()
            raise

    def _started(self) -> ipp.Client:
        """The client, once all ranks are there; after a second start where it takes one."""
        try:
            return self._processes.start()
        except ControllerFailed:
            self.channel.close()
            self._processes.kill()
            self._make_processes()
            return self._processes.start()

    def _start(self) -> None:
        client = None
        try:
            client = self._started()
            late = f"the ranks did not answer within {LIMIT_SECONDS:.0f} s"
            begun = self._answers(client, LIMIT_SECONDS, late, _begin, self._imports)
            self._check_world([(one.rank, one.size) for one in begun])
            self.devices = [one.device for one in begun]
            failed = [statement for one in begun for statement in one.failed]
            self.failed_imports = list(dict.fromkeys(failed))
            if self._profile:
                self._look_at_nodes(client)
        except BaseException as error:
            self.channel.close()
            self._end_processes(client)
            self._client.set_exception(error)
        else:
            self._client.set_result(client)

    def _answers(
        self,
        client: ipp.Client,
        seconds: float,
        late: str,
        function: Callable[..., Any],
        *arguments: Any,
    ) -> list[Any]:
        """What `function` returns on each rank. Raises ClusterError(late) after `seconds`."""
        answers = client[:].apply_async(function, *arguments)
        for _ in range(int(seconds / POLL_SECONDS)):
            self._processes.check()
            with contextlib.suppress(TimeoutError):
                return answers.get(POLL_SECONDS)
        raise ClusterError(late)

    def _check_world(self, found: list[tuple[int, int]]) -> None:
        """Whether the engines, in the order of their numbers, are the ranks of one world."""
        if found == [(rank, self.n) for rank in range(self.n)]:
            return
        sizes = sorted({size for _, size in found})
        raise ClusterError(
            f"expected {self.n} ranks of one MPI world, but {len(found)} processes started, in "
            f"worlds of {' and '.join(map(str, sizes))}. A profile must start all ranks with one "
            "`mpiexec`, which is in the same folder as this Python. Check the profile's launcher."
        )

    def _look_at_nodes(self, client: ipp.Client) -> None:
        hosts = [self.channel.ranks[rank].host for rank in range(self.n)]
        late = (
            f"the ranks are there, on {', '.join(dict.fromkeys(hosts))}, but a message from each "
            f"to the next did not arrive within {MESSAGE_SECONDS:.0f} s. Is there a firewall, or a "
            "network that does not connect the nodes? Choose another network with "
            "`parlab profile … --interface`."
        )
        links = self._answers(client, MESSAGE_SECONDS, late, nodes.links)
        self.description = nodes.description(hosts, nodes.interfaces(hosts, links))

    @property
    def has_started(self) -> bool:
        """Whether the start is over, well or not; `on_change` is called then."""
        return self._client.done()

    @property
    def is_there(self) -> bool:
        """Whether the ranks have started well."""
        return self._client.done() and self._client.exception() is None

    @property
    def client(self) -> ipp.Client:
        """ipyparallel's client; engine i is rank i. Waits for the start; raises what went wrong."""
        return self._client.result()

    @property
    def waiting_job(self) -> Job | None:
        """The batch job that the ranks are, where it still waits for nodes."""
        batch = self._processes.batch
        return batch.last if batch and batch.waits else None

    @property
    def is_cut_off(self) -> bool:
        """Whether ipyparallel's controller has ended: no cell reaches the ranks any more."""
        return self.is_there and has_ended(self._processes.cluster.controller)

    def lost_job(self) -> str:
        """What to tell where the batch job that the ranks are is over, which ends them; else empty.

        A job is not over because a rank died: somebody canceled it, or its time was up.
        """
        batch = self._processes.batch
        if not (batch and (job := batch.look_now()) and job.is_over):
            return ""
        self.channel.close()  # supervisors that live on would hold it up
        text = f"{batch.look_at_end()}{self._processes.printed()}"
        self.end()
        return text

    @property
    def processes(self) -> Processes:
        return self._processes

    def end(self) -> None:
        """End the ranks, whether they are there, still start, or have ended."""
        self._ended.set()
        self.channel.close()
        self._starting.join()
        if self.is_there:
            self._end_processes(self._client.result())

    def _end_processes(self, client: ipp.Client | None) -> None:
        self._processes.kill()
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> ipp.AsyncResult:
        """`function(*arguments)` on every rank, without waiting."""
        return self.client[:].apply_async(function, *arguments)
