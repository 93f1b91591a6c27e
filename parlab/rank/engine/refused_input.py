"""Makes `input` raise an error on ranks. Only the notebook's own kernel can ask the user."""

from typing import Any


def install(kernel: Any) -> None:
    """Make `input` and `getpass` raise an error in the cells that `kernel` runs."""

    def refuse(*_: object, **__: object) -> str:
        raise RuntimeError("A rank cannot ask for input. Write the value into the cell.")

    kernel.raw_input = kernel.getpass = refuse
