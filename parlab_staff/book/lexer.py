"""Syntax colors for rank cells: `%%px` on the first line, Python below."""

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.token import Keyword, Operator, Text


class RankCellLexer(IPython3Lexer):
    """IPython's lexer with `%%px`. Without this, such cells would be shown as plain text."""

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
