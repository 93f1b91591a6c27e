"""`parlab doctor`: what this machine has, and what each missing part means for the labs."""

import json
import sys
from collections.abc import Callable, Sequence

from parlab.doctor import machine, mpi, software
from parlab.doctor.finding import Finding, Status

# In the order in which a reader wants to know, which is also that of cause and effect.
EXAMINATIONS: dict[str, Callable[[], Finding]] = {
    "python": software.python,
    "packages": software.packages,
    "cores": machine.cores,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "mpi": mpi.ranks,
    "torch": software.torch,
    "triton": software.triton,
    "gpus": machine.gpus,
    "backends": software.backends,
    "jupyterlab": software.jupyterlab,
    "chromium": machine.chromium,
    "bubblewrap": machine.bubblewrap,
}


def examine(name: str) -> Finding:
    """Look at one thing; an examination that itself fails is a finding too."""
    try:
        return EXAMINATIONS[name]()
    except KeyError:
        raise ValueError(f"nothing is called {name!r}: {', '.join(EXAMINATIONS)}") from None
    except Exception as error:
        return Finding(
            "fail", f"could not be looked at ({type(error).__name__}: {error})", "Try `make setup`."
        )


def main(as_json: bool = False) -> int:
    """Examine everything and print it; 0 when the labs can run, else 1."""
    if not as_json:
        print("What this machine has, and what it means for the labs\n", flush=True)
    found: dict[str, Finding] = {}
    for name in EXAMINATIONS:
        found[name] = examine(name)
        if not as_json:
            print(_shown(name, found[name]), flush=True)
    failed = [name for name, finding in found.items() if finding.status == "fail"]
    next_step = (
        f"Not ready: mend {', '.join(failed)} as said above, then `parlab doctor` again."
        if failed
        else "Ready: `make lab` opens the labs."
    )
    if as_json:
        findings = [{"name": name} | vars(finding) for name, finding in found.items()]
        print(json.dumps({"ready": not failed, "next": next_step, "findings": findings}, indent=1))
    else:
        print(f"\n{next_step}")
    return 1 if failed else 0


def require(names: Sequence[str]) -> int:
    """0 when all of `names` are there; else 1, and a line for each that is missing."""
    missing = {name: finding for name in names if (finding := examine(name)).status != "ok"}
    for name, finding in missing.items():
        print(f"{name}: {finding.found}. {finding.meaning}", file=sys.stderr)
    return 1 if missing else 0


_MARKS: dict[Status, str] = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def _shown(name: str, finding: Finding) -> str:
    return f"{_MARKS[finding.status]}  {name}: {finding.found}\n      {finding.meaning}"
