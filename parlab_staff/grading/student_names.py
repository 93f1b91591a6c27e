"""Compares students' names, which submissions, rosters, and corrections spell differently."""

import unicodedata

# Scripts such as Persian need these two between letters; other invisible characters are accidents.
_JOINERS = "\u200c\u200d"


def clean_name(name: str) -> str:
    """Return the name in composed characters, without invisible characters.

    macOS stores ü as u and two dots. A name that is copied from a web page or a spreadsheet may
    contain a zero-width space or a mark for the direction of writing. A name of only such
    characters does not change.
    """
    name = unicodedata.normalize("NFC", name)
    return "".join(c for c in name if c in _JOINERS or unicodedata.category(c) != "Cf") or name


def plain_name(name: str) -> str:
    """Return the same text for names that look the same, without spaces around it."""
    return clean_name(name).strip()
