"""The command `python -m tests.soak`."""

import argparse
import sys
import time

from tests.soak.run import Soak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("minutes", type=float, help="how long to run cells")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the cells")
    parser.add_argument("--first", type=int, default=0, help="number of the first cell")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    soak = Soak(arguments.seed, arguments.first)
    try:
        soak.run(60 * arguments.minutes)
    except KeyboardInterrupt:
        soak.close()
    print(soak.summary())
    sys.exit(bool(soak.violations))


if __name__ == "__main__":
    main()
