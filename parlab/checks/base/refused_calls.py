"""The errors of blocked communicators and of `late_group`, and the findings that explain them."""

from parlab.checks.base.mistakes import COMMON, Finding

REFUSED = "the default group refuses while a check runs"
NO_MEMORY = "the storage behind a tensor is too small"
FREED_BEFORE_WAIT = "the memory of its tensor was freed before a wait for it"
CHANGED_BEFORE_WAIT = "its tensor was changed before it was sent"
NOT_CONTIGUOUS = "its tensor is not contiguous"
_NULL_COMMUNICATOR = "MPI_ERR_COMM"
_NO_DEFAULT_GROUP = "Default process group has not been initialized"


def refusal(error: str) -> Finding | None:
    """Return the finding for an `error` that a check's communicator or group raised; else None."""
    if _NULL_COMMUNICATOR in error:
        return COMMON.lab_communicator()
    if REFUSED in error or _NO_DEFAULT_GROUP in error:
        return COMMON.default_group()
    if NO_MEMORY in error:
        return COMMON.no_memory(error=error)
    if FREED_BEFORE_WAIT in error:
        return COMMON.freed_before_wait(error=error)
    if CHANGED_BEFORE_WAIT in error:
        return COMMON.changed_before_wait()
    if NOT_CONTIGUOUS in error:
        return COMMON.not_contiguous(error=error)
    return None
