"""The errors that a rank cell raises.

IPython shows only their messages, which include the lines where the ranks were.
"""


class _ShownAsMessage:
    def _render_traceback_(self) -> list[str]:
        # IPython calls this. The frames inside parlab would only distract from the message.
        return str(self).splitlines()


class RankError(_ShownAsMessage, Exception):
    """A rank cell did not succeed on every rank."""


class RankFailed(RankError):
    """The cell's code raised an error on one or more ranks."""


class DeadlineExceeded(RankError):
    """At least one rank had not finished at the cell's deadline."""


class RankDied(RankError):
    """A rank's process ended."""


class RankInterrupted(_ShownAsMessage, KeyboardInterrupt):
    """The user stopped the cell.

    It is a KeyboardInterrupt, not an Exception, so `except Exception` in a loop does not catch it.
    """


CellError = RankError | RankInterrupted


class ClusterError(RankError):
    """The ranks could not be started, or none are running."""
