"""The ranks of one notebook, which are replaced if they cannot be freed, and their variables."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ipyparallel as ipp

from parlab.cluster.channel import Channel
from parlab.cluster.ending import CUT_OFF, died_text, lost_job_text, replaced_text
from parlab.cluster.errors import ClusterError, RankInterrupted
from parlab.cluster.locations import Cells
from parlab.cluster.names import Names
from parlab.cluster.rank_set import RankSet
from parlab.cluster.replies import Replies
from parlab.cluster.stop_button import StopButton
from parlab.costs.networks import Network
from parlab.network.labels import rank_environment
from parlab.runtime.heap import always_give_back_large_blocks

Notify = Callable[[str], None]

STARTING = (
    "Interrupted while new ranks were starting. They continue to start. Run the cell again, or "
    "call `cluster.stop()`."
)
NOT_BEGUN = "Interrupted. The cell did not begin on any rank."
STOPPED = "The ranks were stopped. Run cluster.start() to start new ones."
NOT_STARTED = "No ranks are running, because the last start failed. Run cluster.start() again."


class Session:
    """A notebook's set of `n` ranks, which starts in the background, with its cells and names."""

    def __init__(self, n: int, profile: str | None, network: Network | None = None) -> None:
        always_give_back_large_blocks()  # which hold what the ranks print
        self.n = n
        self.profile = profile
        self.network = network  # the network that `group` emulates
        self.cells = Cells()
        self.names = Names()
        self.on_change: list[Callable[[], None]] = []  # called from any thread when a rank ends
        self.last: Replies | None = None  # of the last cell
        self.background: list[Replies] = []  # of `--noblock` cells
        self._ending: list[threading.Thread] = []
        self._ranks: RankSet | None = None
        self._why_none = STOPPED  # while there are no ranks
        self._failure: ClusterError | None = None  # the next call of `ready` raises it
        self._start([])

    def _start(self, imports: list[str]) -> None:
        environment = rank_environment(self.network) if self.network else {}
        try:
            self._ranks = RankSet(self.n, self.profile, environment, imports, self._changed)
        except ClusterError as error:
            self._failure, self._why_none = error, NOT_STARTED

    def _changed(self) -> None:
        for call in list(self.on_change):
            call()

    @contextmanager
    def waking(self, stop: StopButton) -> Iterator[None]:
        """Wake the thread that waits with `stop` when a rank ends."""
        self.on_change.append(stop.notify)
        try:
            yield
        finally:
            self.on_change.remove(stop.notify)

    @property
    def ranks(self) -> RankSet:
        """Return the set of ranks. Raises ClusterError if it was stopped or did not start."""
        if self._ranks is None:
            raise ClusterError(self._why_none)
        return self._ranks

    def send(self, code: str, ranks: list[int]) -> Replies:
        """Start `code` on these ranks, without waiting for it."""
        if not code.startswith("%%"):  # for a cell with magics, the caller adds its Python part
            self.cells.add(code)
        # Each rank reads from the label which ranks run the cell (`parlab.rank.cell`).
        result = self.client[ranks].execute(code, silent=False, block=False, label=ranks)
        return Replies(ranks, result, self.channel)

    def remember(self, replies: Replies, *, is_shared: bool) -> None:
        """Keep the answers to the last cell, and forget those to the cell before it.

        `is_shared` is True if the user has ipyparallel's result of the cell.
        """
        if self.last is not None:
            self.last.forget()
        replies.is_shared = is_shared
        self.last = replies

    def in_background(self) -> list[int]:
        """Return the ranks that run a `--noblock` cell."""
        return sorted({rank for replies in self.background for rank in replies.running()})

    def ended_in_background(self) -> list[Replies]:
        """Return the `--noblock` cells that have ended since the last call."""
        ended = [replies for replies in self.background if not replies.running()]
        self.background = [replies for replies in self.background if replies.running()]
        return ended

    @property
    def channel(self) -> Channel:
        """Return the connections to the ranks' supervisors."""
        return self.ranks.channel

    @property
    def client(self) -> ipp.Client:
        """Return ipyparallel's client, in which engine i is rank i."""
        return self.ranks.client

    @property
    def view(self) -> ipp.DirectView:
        """Return ipyparallel's view of all ranks, which waits for results."""
        view = self.client[:]
        view.block = True
        return view

    def replace_lost(self) -> str:
        """Start new ranks in place of the lost ones. Return a text that says what was lost.

        If the ranks' batch job is over, do not start new ranks: if a user ended the job, they do
        not want another one.
        """
        if job := self.ranks.lost_job():
            self._ranks = None
            gone = self.names.forget_variables()
            self.background.clear()
            return lost_job_text(job, gone)
        return replaced_text(self.replace())

    def replace(self) -> list[str]:
        """End the ranks and start new ones, both in the background. Return the lost names.

        The new ranks repeat the imports of the labs' cells.
        """
        # Ending busy ranks takes a second, so a thread does it.
        ending = threading.Thread(target=self.ranks.end, name="parlab-end")
        ending.start()
        self._ending = [*(thread for thread in self._ending if thread.is_alive()), ending]
        gone = self.names.forget_variables()
        self.background.clear()
        self._ranks = None
        self._start(list(self.names.imports))
        return gone

    def ready(self, notify: Notify = lambda text: None) -> None:
        """Wait until the ranks have started. Replace them if one died since the last cell.

        Raises:
            ClusterError: the ranks did not start, or were stopped.
            RankInterrupted: stop was pressed. The ranks continue to start, but a batch job that
                waits for nodes is canceled.
        """
        if self._failure is None:
            self._replace_dead(notify)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        try:
            self._wait(notify)
        except ClusterError:
            self._ranks, self._why_none = None, NOT_STARTED
            raise
        except Exception as error:
            self._ranks, self._why_none = None, NOT_STARTED
            raise ClusterError(f"the ranks did not start ({error}): run cluster.start()") from error

    def _replace_dead(self, notify: Notify) -> None:
        ranks = self.ranks
        with StopButton() as stop:  # so that a press does not interrupt this halfway
            if ranks.start_succeeded and (deaths := ranks.channel.deaths()):
                text = died_text(deaths, ranks.channel, self.cells, self.n)
                notify(f"{text}\n{self.replace_lost()}")
            elif ranks.is_cut_off:
                notify(f"{CUT_OFF}\n{self.replace_lost()}")
        if stop.presses:
            raise RankInterrupted(STARTING)

    def _wait(self, notify: Notify) -> None:
        shown = None
        with StopButton() as stop, self.waking(stop):
            while not self.ranks.has_started:
                job = self.ranks.waiting_job
                if stop.presses and job:
                    self.stop()
                    raise RankInterrupted(f"Interrupted. {job}. It was canceled.")
                if stop.presses:
                    raise RankInterrupted(STARTING)
                if job and job != shown:
                    notify(f"{job}. It waits for nodes. The stop button cancels it.")
                    shown = job
                stop.wait_for_change(1.0)
        if stop.presses:  # just when the ranks were ready
            raise RankInterrupted(NOT_BEGUN)
        self.ranks.client  # noqa: B018, raises the error of a failed start
        failed, self.ranks.failed_imports = self.ranks.failed_imports, []
        for shown in self.names.forget_imports(failed):
            notify(f"This import failed on the new ranks: {shown}")

    def stop(self) -> None:
        """End the ranks, if any."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.end()
        for thread in self._ending:
            thread.join()
