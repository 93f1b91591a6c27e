"""`%%px` with a deadline: ipyparallel's magics, run by `parlab.cluster.cell`."""

from ipyparallel.client.magics import ParallelMagics, exec_args, output_args
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from parlab.cluster import ending, outputs
from parlab.cluster.cell import Cell
from parlab.cluster.session import Session

DEFAULT_TIMEOUT = 60.0


class RankMagics(ParallelMagics):
    """ipyparallel's magics over the ranks of a session."""

    def __init__(self, shell, session: Session) -> None:
        self.session = session
        super().__init__(shell, session.view)

    @magic_arguments()
    @exec_args
    @argument(
        "--local",
        action="store_const",
        const=True,
        dest="local",
        help="also run the cell in the notebook's own kernel",
    )
    @argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT,
        help="seconds until the cell is stopped and its ranks are freed (default: 60)",
    )
    @output_args
    @no_var_expand
    def cell_px(self, line: str = "", cell: str | None = None):
        """Run the cell on the ranks; say where each one is if it does not end in time."""
        args = parse_argstring(self.cell_px, line)
        if not args.timeout > 0:
            raise UsageError("%%px --timeout takes a number of seconds above 0")
        self.session.ready(print)
        self.view = self.session.view
        targets = self._targets(args.targets)
        # A line in the place of `%%px` makes the ranks count lines as the notebook shows them.
        code = f"#\n{cell}"
        if args.local:
            self.shell.run_cell(cell)
        if args.block is False:
            result = self.session.client[targets].execute(code, silent=False, block=False)
            self.last_result = result
            if args.save_name:
                self.shell.user_ns[args.save_name] = result
            return result
        return self._run(code, targets, args.timeout, args.save_name)

    @no_var_expand
    def px(self, line: str = ""):
        """Run one line on the ranks."""
        self.session.ready(print)
        self.view = self.session.view
        return self._run(line, self._targets(None), DEFAULT_TIMEOUT, None)

    def _targets(self, text: str | None) -> list[int]:
        targets = self._eval_target_str(text) if text else self.view.targets
        if targets == "all":
            return list(range(self.session.n))
        targets = [targets] if isinstance(targets, int) else list(targets)
        unknown = [t for t in targets if t not in range(self.session.n)]
        if unknown or not targets:
            raise UsageError(f"there are ranks 0 to {self.session.n - 1}, not {unknown or 'none'}")
        return targets

    def _run(self, code: str, targets: list[int], timeout: float, save_name: str | None) -> None:
        session = self.session
        cell = Cell(session, code, targets, timeout)
        self.last_result, session.last = cell.result, cell.replies
        if save_name:
            self.shell.user_ns[save_name] = cell.result
        progress = outputs.Progress(timeout)
        outcome = cell.run(progress)
        progress.clear()
        outputs.show(cell.replies, session.n)
        n = session.n
        if outcome.deaths:
            error = ending.died_error(outcome, session.channel, session.cells, cell.replies, n)
        else:
            error = ending.error_of(outcome, cell.replies, timeout, n)
        if error is None:
            return
        if not outcome.freed:
            error.args = (f"{error}\n{ending.replaced_text(session.replace())}",)
        elif cell.released:
            error.args = (f"{error}\n{ending.kept_text(outcome)}",)
        raise error
