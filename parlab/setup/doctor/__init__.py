"""`parlab doctor`: what this machine has, and what each missing part means for the labs."""

import json
from collections.abc import Callable

from parlab.setup.doctor import machine, mpi, programs, software, surroundings
from parlab.setup.doctor.finding import Finding, Status

# In the order of importance for a reader, with causes before their effects.
EXAMINATIONS: dict[str, Callable[[], Finding]] = {
    "python": software.python,
    "packages": software.packages,
    "line endings": surroundings.line_endings,
    "environment": surroundings.environment,
    "locale": surroundings.language,
    "proxies": surroundings.proxies,
    "disk": surroundings.disk,
    "home": surroundings.home,
    "temporary folder": surroundings.temporary_folder,
    "cores": machine.cores,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "loopback": surroundings.lo,
    "host name": surroundings.host_name,
    "mpi": mpi.ranks,
    "torch": software.torch,
    "triton": software.triton,
    "gpus": machine.gpus,
    "backends": software.backends,
    "jupyterlab": software.jupyterlab,
    "chromium": programs.chromium,
    "bubblewrap": programs.bubblewrap,
    "slurm": programs.slurm,
    "ssh": programs.ssh,
}


def examine(name: str) -> Finding:
    """Run one examination. If it raises an error, return that as a finding."""
    try:
        return EXAMINATIONS[name]()
    except Exception as error:
        return Finding(
            "fail",
            f"could not be examined ({type(error).__name__}: {error})",
            "Remove .venv, and run `make setup`.",
        )


def main(as_json: bool = False) -> int:
    """Examine everything, and print the findings. Return 0 if the labs can run, else 1."""
    if not as_json:
        print("What this machine has, and what it means for the labs\n", flush=True)
    found: dict[str, Finding] = {}
    for name in EXAMINATIONS:
        found[name] = examine(name)
        if not as_json:
            print(_shown(name, found[name]), flush=True)
    failed = [name for name, finding in found.items() if finding.status == "fail"]
    next_step = (
        f"Not ready: fix {', '.join(failed)} as described above, then run `parlab doctor` again."
        if failed
        else "Ready: `make lab` opens the labs."
    )
    if as_json:
        findings = [{"name": name} | vars(finding) for name, finding in found.items()]
        print(json.dumps({"ready": not failed, "next": next_step, "findings": findings}, indent=1))
    else:
        print(f"\n{next_step}")
    return 1 if failed else 0


_MARKS: dict[Status, str] = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def _shown(name: str, finding: Finding) -> str:
    return f"{_MARKS[finding.status]}  {name}: {finding.found}\n      {finding.meaning}"
