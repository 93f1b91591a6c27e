"""Runs a command with rehearsed GPUs: `python -m tests.rehearsal 4 COMMAND …`.

Variables such as `REHEARSAL_PROTECT=0` that are already set are not changed.
"""

import os
import sys

from tests.rehearsal.environment import environment


def main() -> None:
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit("python -m tests.rehearsal GPUS COMMAND …")
    variables = environment(int(sys.argv[1]))
    kept = {name: os.environ[name] for name in variables.keys() & os.environ.keys()}
    kept = {name: value for name, value in kept.items() if name.startswith("REHEARSAL_")}
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ | variables | kept)


if __name__ == "__main__":
    main()
