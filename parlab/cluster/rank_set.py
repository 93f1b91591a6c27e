"""One set of ranks: starts and ends its processes, and holds the connections to them."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import ipyparallel as ipp

from parlab.cluster import nodes
from parlab.cluster.channel import Channel
from parlab.cluster.errors import ClusterError
from parlab.cluster.import_time import LIMIT_SECONDS
from parlab.cluster.launchers import has_ended
from parlab.cluster.processes import ControllerFailed, Processes
from parlab.profiles.slurm import Job
from parlab.rank.engine import calls

POLL_SECONDS = 0.2
MESSAGE_SECONDS = 60.0  # for first messages between nodes


class RankSet:
    """`n` ranks, which start in the background.

    `on_change` is called when the start is over, and when a rank ends.
    """

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
        self.description = ""  # of the nodes, if there is a profile
        self.devices: list[calls.RankDevice] = []  # by rank, once the ranks have started
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
        """Wait for all ranks and return the client. If the controller fails, start once more."""
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
            results = self._answers(client, LIMIT_SECONDS, late, calls.set_up, self._imports)
            self._check_world([(result.rank, result.size) for result in results])
            self.devices = [result.device for result in results]
            failed = [statement for result in results for statement in result.failed]
            self.failed_imports = list(dict.fromkeys(failed))
            if self._profile:
                self._describe_nodes(client)
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
        """Call `function` on every rank and return the results, by rank.

        Raises ClusterError(late) after `seconds`.
        """
        answers = client[:].apply_async(function, *arguments)
        for _ in range(int(seconds / POLL_SECONDS)):
            self._processes.check()
            with contextlib.suppress(TimeoutError):
                return answers.get(POLL_SECONDS)
        raise ClusterError(late)

    def _check_world(self, found: list[tuple[int, int]]) -> None:
        """Raise ClusterError unless engine i is rank i of one MPI world, for all engines.

        `found` has each engine's rank and world size.
        """
        if found == [(rank, self.n) for rank in range(self.n)]:
            return
        sizes = sorted({size for _, size in found})
        raise ClusterError(
            f"expected {self.n} ranks of one MPI world, but {len(found)} processes started, in "
            f"worlds of {' and '.join(map(str, sizes))}. One `mpiexec`, the one in the folder of "
            "this Python, must start all ranks. Check the profile's launcher, or run `parlab "
            "doctor`."
        )

    def _describe_nodes(self, client: ipp.Client) -> None:
        hosts = [self.channel.ranks[rank].host for rank in range(self.n)]
        late = (
            f"the ranks have started on {', '.join(dict.fromkeys(hosts))}, but messages between "
            f"them did not arrive within {MESSAGE_SECONDS:.0f} s. Is there a firewall, or a "
            "network that does not connect the nodes? Choose another network with "
            "`parlab profile … --interface`."
        )
        links = self._answers(client, MESSAGE_SECONDS, late, nodes.links)
        self.description = nodes.description(hosts, nodes.interfaces(hosts, links))

    @property
    def has_started(self) -> bool:
        """Return True if the start is over, whether it succeeded or failed."""
        return self._client.done()

    @property
    def start_succeeded(self) -> bool:
        """Return True if the ranks have started without an error."""
        return self._client.done() and self._client.exception() is None

    @property
    def client(self) -> ipp.Client:
        """Wait for the start and return ipyparallel's client, in which engine i is rank i.

        If the start failed, raise its error.
        """
        return self._client.result()

    @property
    def waiting_job(self) -> Job | None:
        """Return the ranks' batch job if it waits for nodes, otherwise None."""
        batch = self._processes.batch
        return batch.last if batch and batch.waits else None

    @property
    def is_cut_off(self) -> bool:
        """Return True if the controller has ended, so that no more cells can reach the ranks."""
        return self.start_succeeded and has_ended(self._processes.cluster.controller)

    def lost_job(self) -> str:
        """If the ranks' batch job is over, end the ranks and describe the job. Otherwise return "".

        The death of a rank does not end a job. It is over if it was canceled or its time was up.
        """
        batch = self._processes.batch
        if not (batch and (job := batch.query_now()) and job.is_over):
            return ""
        self.channel.close()  # ends the supervisors, for which the job would wait
        text = f"{batch.wait_for_end()}{self._processes.printed()}"
        self.end()
        return text

    @property
    def processes(self) -> Processes:
        return self._processes

    def end(self) -> None:
        """End the ranks. This also works while they start, and after they have ended."""
        self._ended.set()
        self.channel.close()
        self._starting.join()
        if self.start_succeeded:
            self._end_processes(self._client.result())

    def _end_processes(self, client: ipp.Client | None) -> None:
        self._processes.kill()
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> ipp.AsyncResult:
        """Call `function(*arguments)` on every rank, without waiting for the results."""
        return self.client[:].apply_async(function, *arguments)
