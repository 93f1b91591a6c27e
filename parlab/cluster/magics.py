"""`%%px` with a deadline: ipyparallel's magics, executed by `parlab.cluster.execution`."""

from ipyparallel.client.magics import ParallelMagics
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from parlab.cluster import ending, outputs, report
from parlab.cluster.damage import repair
from parlab.cluster.errors import CellError, RankDied, RankFailed, RankInterrupted
from parlab.cluster.execution import Execution
from parlab.cluster.locations import with_lines_of_notebook
from parlab.cluster.outcome import Outcome
from parlab.cluster.replies import Replies
from parlab.cluster.session import Session
from parlab.cluster.stop_button import StopButton

DEFAULT_TIMEOUT = 60.0


class RankMagics(ParallelMagics):
    """ipyparallel's magics for the ranks of a session."""

    def __init__(self, shell, session: Session) -> None:
        self.session = session
        super().__init__(shell, None)  # `_ready` sets `view` when the ranks have started

    @magic_arguments()
    @argument(
        "--timeout",
        type=float,
        help=f"seconds until the cell is stopped and its ranks are freed ({DEFAULT_TIMEOUT:.0f})",
    )
    @argument("-t", "--targets", help="ranks that run the cell, as 0,2 or 0:3 (default: all)")
    @argument("--local", action="store_true", help="also run the cell in the notebook's own kernel")
    @argument(
        "-a", "--noblock", action="store_true", help="do not wait: `%%pxresult` shows the output"
    )
    @argument("-o", "--out", dest="save_name", help="name for ipyparallel's result of the cell")
    @no_var_expand
    def cell_px(self, line: str = "", cell: str | None = None):
        """Run the cell on the ranks. If it does not end in time, show where each rank is."""
        args = parse_argstring(self.cell_px, line)
        if args.timeout is not None and not args.timeout > 0:
            raise UsageError("%%px --timeout takes a number of seconds above 0")
        if args.timeout is not None and args.noblock:
            raise UsageError("%%px --noblock has no deadline: leave out --timeout")
        notices = self._ready()
        targets = self._targets(args.targets)
        code, body = with_lines_of_notebook(cell)
        self.session.cells.add(body)
        if args.local:
            ran = self.shell.run_cell(cell)
            if isinstance(ran.error_in_exec, KeyboardInterrupt):
                raise RankInterrupted("Interrupted. The cell did not begin on any rank.")
        if args.noblock:
            replies = self.session.send(code, targets)
            self.session.names.add(code)
            self.session.background.append(replies)
            self.session.remember(replies, is_shared=True)
            result = self.last_result = replies.result
            if args.save_name:
                self.shell.user_ns[args.save_name] = result
            return result
        return self._run(code, targets, args.timeout or DEFAULT_TIMEOUT, args.save_name, notices)

    @no_var_expand
    def px(self, line: str = ""):
        """Run one line on the ranks."""
        notices = self._ready()
        return self._run(line, self._targets(None), DEFAULT_TIMEOUT, None, notices)

    @no_var_expand
    def autopx(self, line: str = "") -> None:
        """Raise UsageError, because its cells would have no deadline and ignore the stop button."""
        raise UsageError("%autopx is not for these ranks: begin each cell with %%px instead")

    @no_var_expand
    def pxconfig(self, line: str = "") -> None:
        """Raise UsageError, because each cell has its own options."""
        raise UsageError(
            "%pxconfig is not for these ranks: give each cell its options, as %%px --targets 0,1"
        )

    @no_var_expand
    def result(self, line: str = "") -> None:
        """Wait until all ranks have ended the last `%%px` cell, and show what it printed."""
        if line.strip():
            raise UsageError("%pxresult takes no options")
        replies = self.session.last
        if replies is None:
            raise UsageError("no %%px cell has run yet")
        with StopButton() as stop, self.session.waking(stop):
            self._wait(replies, stop)
            outputs.show(outputs.printed(replies, stop), self.session.n)
        if stop.presses:
            raise RankInterrupted("Interrupted. The cell's output was shown.")
        if replies.running():
            raise RankDied("Some ranks that ran this cell no longer exist, so it will not end.")
        if replies in self.session.background:
            self.session.background.remove(replies)  # its errors are reported here
        if errors := report.failures(ending.errors_by_rank(replies, {}), self.session.n):
            raise RankFailed("\n".join(errors))

    def _ready(self) -> list[str]:
        """Wait for the ranks, and print errors of `--noblock` cells that were not shown yet.

        Return all that was printed.
        """
        printed = []

        def tell(text: str) -> None:
            print(text)
            printed.append(text)

        self.session.ready(tell)
        self.view = self.session.view
        for replies in self.session.ended_in_background():
            if failures := report.failures(ending.errors_by_rank(replies, {}), self.session.n):
                tell("\n".join(["An earlier cell with `--noblock` failed:", *failures]))
        return printed

    def _wait(self, replies: Replies, stop: StopButton) -> None:
        """Wait until each rank has answered, or will never answer."""
        replies.on_each(stop.notify)
        while replies.running() and not replies.will_not_come():
            if stop.presses:
                raise RankInterrupted("Interrupted. The cell continues to run.")
            stop.wait_for_change(1.0)

    def _targets(self, text: str | None) -> list[int]:
        try:
            targets = self._eval_target_str(text) if text else self.view.targets
        except Exception:
            raise UsageError(f"--targets takes ranks, as 0,2 or 0:3, not {text!r}") from None
        if targets == "all":
            return list(range(self.session.n))
        targets = [targets] if isinstance(targets, int) else list(targets)
        unknown = [t for t in targets if t not in range(self.session.n)]
        if unknown or not targets:
            raise UsageError(f"there are ranks 0 to {self.session.n - 1}, not {unknown or 'none'}")
        return targets

    def _run(
        self,
        code: str,
        targets: list[int],
        timeout: float,
        save_name: str | None,
        notices: list[str],
    ) -> None:
        progress = outputs.Progress(timeout)
        with StopButton() as stop, self.session.waking(stop):
            execution = Execution(self.session, code, targets, timeout, stop)
            outcome = execution.run(progress)
            printed = outputs.printed(execution.replies, stop)
            error = self._error(execution, outcome)
            self.session.remember(execution.replies, is_shared=bool(save_name))
            self.last_result = execution.replies.result
            if save_name:
                self.shell.user_ns[save_name] = execution.replies.result
            if progress.clear() and notices:
                print("\n".join(notices))
            outputs.show(printed, self.session.n)
            if outcome.intact and not outcome.freed:
                repair(execution, printed, error, stop)
            del printed  # which IPython would keep with the traceback of `error`
        if error is None and stop.presses:
            error = RankInterrupted("Interrupted. The ranks had finished the cell.")
        if error is not None:
            raise error

    def _error(self, execution: Execution, outcome: Outcome) -> CellError | None:
        """Return the error that the cell raises, or None. Replace ranks that are not intact."""
        session, n = self.session, self.session.n
        died = ending.died_text(outcome.deaths, session.channel, session.cells, n)
        error = ending.error_of(outcome, execution.replies, execution.timeout, died, n)
        if error is not None and not outcome.intact:
            lost = [ending.reason_text(outcome, n), session.replace_lost()]
            error.args = ("\n".join([str(error), *filter(None, lost)]),)
        elif error is not None and outcome.freed:
            error.args = (f"{error}\n{ending.kept_text(outcome)}",)
        return error
