"""Magics refuse options that would have no effect on these ranks, with an explanation."""

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from parlab.cluster.magics import RankMagics


@pytest.fixture(scope="module")
def magics() -> RankMagics:
    """Magics without ranks, because bad options are refused before any rank is needed."""
    return RankMagics(InteractiveShell(history_manager=None), session=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--no-stream", "unrecognized arguments: --no-stream"),
        ("--group-outputs=engine", "unrecognized arguments: --group-outputs=engine"),
        ("--signal-on-interrupt 2", "unrecognized arguments: --signal-on-interrupt 2"),
        ("--progress-after 0", "unrecognized arguments: --progress-after 0"),
        ("--verbose", "unrecognized arguments: --verbose"),
        ("--noblock --timeout 3", "%%px --noblock has no deadline: leave out --timeout"),
        ("--timeout 0", "a number of seconds above 0"),
        ("--timeout nan", "a number of seconds above 0"),
        ("--timeout soon", "invalid float value: 'soon'"),
    ],
)
def test_an_option_that_does_nothing_is_refused(magics: RankMagics, options: str, words: str):
    with pytest.raises(UsageError, match=words):
        magics.cell_px(options, "1")


def test_unsupported_magics_say_what_to_use_instead(magics: RankMagics) -> None:
    with pytest.raises(UsageError, match=r"give each cell its options, as %%px --targets 0,1"):
        magics.pxconfig("--targets 0")
    with pytest.raises(UsageError, match="%pxresult takes no options"):
        magics.result("-o saved")
    with pytest.raises(UsageError, match="begin each cell with %%px instead"):
        magics.autopx("")
