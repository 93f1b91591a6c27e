"""Syntax colours for rank cells: `%%px` on the first line, Python under it."""

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.token import Keyword, Operator, Text


class RankCellLexer(IPython3Lexer):
    """IPython's lexer, which takes what follows a magic that it does not know for plain text."""

    name = "IPython on ranks"
    aliases = ("ipython-ranks",)
    tokens = {  # noqa: RUF012, as Pygments wants it
        **IPython3Lexer.tokens,
        "root": [
            (
                r"(?s)(\s*)(%%)(px)([^\n]*\n)(.*)",
                bygroups(Text, Operator, Keyword, Text, using(IPython3Lexer)),
            ),
            *IPython3Lexer.tokens["root"],
        ],
    }
