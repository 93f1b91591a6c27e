"""What a rank cell raises. Each shows as its message alone: the ranks' own lines are in it."""


class _ShownAsMessage:
    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: the frames inside parlab would only bury the message.
        return str(self).splitlines()


class RankError(_ShownAsMessage, Exception):
    """A rank cell did not end well on every rank."""


class RankFailed(RankError):
    """Code raised on one or more ranks."""


class DeadlineExceeded(RankError):
    """Some rank had not finished by the cell's deadline."""


class RankDied(RankError):
    """A rank's process ended."""


class RankInterrupted(_ShownAsMessage, KeyboardInterrupt):
    """The user stopped the cell.

    Like KeyboardInterrupt, it is no Exception: `except Exception` in a loop does not catch it.
    """


CellError = RankError | RankInterrupted


class ClusterError(RankError):
    """The ranks could not be started, or there are none."""
