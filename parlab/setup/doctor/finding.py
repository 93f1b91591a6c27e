"""The result of an examination."""

from dataclasses import dataclass
from typing import Literal

# "note": something is missing or unusual, but the labs run. "fail": the labs do not run.
Status = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Finding:
    status: Status
    found: str  # the state of the machine
    meaning: str  # the consequence for the labs, and what to do if something is missing
