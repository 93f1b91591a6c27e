"""Puts the pictures of the book into the document itself, so that `hatch.js` can change them."""

import html
import itertools
import re
from pathlib import Path
from urllib.parse import unquote, urlparse

_PICTURE = re.compile(r"<img\b[^>]*\.svg[^>]*>")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
# An id, and references to ids.
_NAMES = re.compile(r'(\bid="|url\(#|\bhref="#)')


def inline(document: str) -> str:
    """Replace each SVG picture with the content of its file."""
    numbers = itertools.count()
    return _PICTURE.sub(lambda picture: _content(picture[0], f"picture-{next(numbers)}"), document)


def _content(picture: str, key: str) -> str:
    """Return the content of the file that an `img` element shows, with `key` before each id."""
    attributes = dict(_ATTRIBUTE.findall(picture))
    file = Path(unquote(urlparse(html.unescape(attributes["src"])).path))
    content = file.read_text(encoding="utf-8")
    content = _METADATA.sub("", content[content.index("<svg") :])
    content = _NAMES.sub(rf"\1{key}-", content)
    # A style sheet in a picture would apply to the whole document.
    content = content.replace("*{", f"#{key} *{{")
    text = attributes.get("alt", "")
    described = f'role="img" aria-label="{text}"' if text else 'aria-hidden="true"'
    start = f'<svg id="{key}" class="picture {attributes.get("class", "")}" {described}'
    return content.replace("<svg", start, 1)
