"""Compares students' names, which submissions, rosters, and corrections spell differently."""

import unicodedata

# Scripts such as Persian need these two characters between letters. Others are there by accident.
_JOINERS = "\u200c\u200d"


def clean_name(name: str) -> str:
    """Return the name in composed characters, without invisible characters.

    macOS stores ü as u and two dots. A name that is copied from a web page or a spreadsheet may
    contain a zero-width space or a mark for the direction of writing. A name that consists only of
    such characters does not change.
    """
    name = unicodedata.normalize("NFC", name)
    return "".join(c for c in name if c in _JOINERS or unicodedata.category(c) != "Cf") or name


def plain_name(name: str) -> str:
    """Return a name without spaces around it. Names that look the same become equal."""
    return clean_name(name).strip()
