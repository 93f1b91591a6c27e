"""Fixtures that several files with tests of ranks in a notebook share."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Notebook


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    """Provide a kernel for tests that do not end it. Each test starts the ranks that it needs."""
    notebook = Notebook()
    yield notebook
    notebook.shutdown()


@pytest.fixture
def held(notebook: Notebook) -> None:
    """Define the variable `held` on all ranks."""
    ran = notebook.run("%%px\nheld = rank * 11")
    assert ran.status == "ok", ran.message


@pytest.fixture
def held_with_torch(notebook: Notebook) -> None:
    """Import torch and define the variable `held` on all ranks."""
    ran = notebook.run(
        "%%px\nimport torch, torch.distributed as dist\nfrom parlab.rank import group\nheld = rank"
    )
    assert ran.status == "ok", ran.message
