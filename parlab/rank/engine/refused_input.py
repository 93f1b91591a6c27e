"""A rank has nobody to ask: the notebook answers only its own kernel."""

from typing import Any


def install(kernel: Any) -> None:
    """Let `input` and `getpass` in the cells that `kernel` runs raise an error that says so."""

    def refuse(*_: object, **__: object) -> str:
        raise RuntimeError("A rank cannot ask for input. Write the value into the cell.")

    kernel.raw_input = kernel.getpass = refuse
