"""The ranks of one notebook: started, replaced when they cannot be freed, stopped."""

import contextlib
import threading
import weakref
from collections.abc import Callable

import ipyparallel as ipp

from parlab.cluster.channel import Channel, Link
from parlab.cluster.errors import ClusterError, RankError
from parlab.cluster.locations import Cells
from parlab.cluster.names import Names
from parlab.cluster.processes import Processes
from parlab.cluster.replies import Replies


def _begin(imports: list[str]) -> None:
    """First call on each rank: errors told by the learner's lines; imports made again."""
    from IPython import get_ipython

    from parlab.rank.errors import install

    shell = get_ipython()
    install(shell)
    for statement in imports:
        with contextlib.suppress(Exception):  # it failed in the lab as well
            exec(statement, shell.user_ns)


def _recover() -> dict[str, object]:
    from IPython import get_ipython

    from parlab.rank.recovery import recover

    return recover(get_ipython().user_ns)


class Session:
    """A set of `n` ranks and all that the notebook knows of them."""

    def __init__(self, n: int, profile: str | None) -> None:
        self.n = n
        self.profile = profile
        self.cells = Cells()
        self.names = Names()
        self.events: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        self.last: Replies | None = None  # of the last cell
        self.lost: set[str] = set()  # variables that hold a communicator that ended
        self.stopped = False
        self._restarting: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._start([])

    def _start(self, imports: list[str]) -> None:
        self.channel = Channel(self._on_death, everywhere=self.profile is not None)
        self._processes = Processes(self.n, self.profile, self.channel.address)
        try:
            self.client: ipp.Client = self._processes.start()
            self.view = self.client[:]
            self.view.block = True
            self.view.apply_async(_begin, imports).get(60)
        except BaseException:
            self.channel.close()
            self._end(*self._detach())
            raise

    def _on_death(self, link: Link) -> None:
        for event in list(self.events):
            event.set()

    def _detach(self) -> tuple[Processes, ipp.Client | None]:
        return self._processes, self.__dict__.pop("client", None)

    @staticmethod
    def _end(processes: Processes, client: ipp.Client | None) -> None:
        processes.kill()
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def recover(self, timeout: float) -> dict[str, object] | None:
        """Renew what a release broke, on all ranks; None when that fails in `timeout` seconds."""
        result = self.view.apply_async(_recover)
        with contextlib.suppress(Exception):
            replies = result.get(timeout)
            return {
                "lost": sorted({name for reply in replies for name in reply["lost"]}),
                "torch": any(reply["torch"] for reply in replies),
            }
        return None

    def replace(self) -> list[str]:
        """End the ranks now and start fresh ones in the background.

        Returns the names that are gone. What the labs' cells imported is imported again.
        """
        gone = self.names.forget_variables()
        imports = list(self.names.imports)
        self.channel.close()
        ending = threading.Thread(target=self._end, args=self._detach(), name="parlab-end")
        ending.start()

        def start() -> None:
            try:
                self._start(imports)
            except BaseException as error:  # told by the next cell
                self._failure = error
            ending.join()

        self._restarting = threading.Thread(target=start, name="parlab-restart")
        self._restarting.start()
        return gone

    def ready(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Wait until ranks are there; replace them if one died since the last cell."""
        if self.stopped:
            raise ClusterError("the ranks were stopped: run cluster.start() again")
        if self._restarting is None and (deaths := self.channel.deaths()):
            from parlab.cluster.ending import died_text

            tell(died_text(deaths, self.channel, self.cells, self.n))
            self.replace()
        if self._restarting is not None:
            self._restarting.join()
            self._restarting = None
        if self._failure is not None:
            error, self._failure = self._failure, None
            self.stopped = True
            raise (
                error
                if isinstance(error, RankError)
                else ClusterError(f"the ranks did not start again ({error}): run cluster.start()")
            )

    def stop(self) -> None:
        """End the ranks; idempotent."""
        if self.stopped:
            return
        self.stopped = True
        if self._restarting is not None:
            self._restarting.join()
        if self._failure is None:
            self.channel.close()
            self._end(*self._detach())
