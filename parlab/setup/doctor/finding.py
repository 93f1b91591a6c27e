"""What an examination found."""

from dataclasses import dataclass
from typing import Literal

# "note": something is missing or unusual, and the labs run; "fail": they do not.
Status = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Finding:
    status: Status
    found: str  # what is there
    meaning: str  # what follows for the labs; where something is missing, what to do
