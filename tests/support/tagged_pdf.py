"""Finds faults in the tags of a PDF, which screen readers use."""

import re
from collections.abc import Iterator
from pathlib import Path

import page
from pypdf import PdfReader
from pypdf.generic import ArrayObject, DictionaryObject


def faults(pdf: Path) -> list[str]:
    """Return violations of PDF/UA-1 (ISO 14289-1), and figures without a useful description."""
    report = page.validate_pdf(pdf, profile="ua1")
    found = [f"{failure.rule_id}: {failure.message}" for failure in report.failures]
    tags = elements(PdfReader(pdf).root_object["/StructTreeRoot"])
    texts = [tag.get("/Alt", "") for tag in tags if tag["/S"] == "/Figure"]
    return found + [
        f"a figure whose description is {text!r}"
        for text in texts
        if not re.search(r"\w", text) or text.endswith(".svg")
    ]


def elements(element: DictionaryObject) -> Iterator[DictionaryObject]:
    """Yield the structure elements below `element`, in reading order."""
    kids = element.get("/K", ArrayObject()).get_object()
    for kid in kids if isinstance(kids, ArrayObject) else [kids]:
        kid = kid.get_object()
        if isinstance(kid, DictionaryObject) and "/S" in kid:
            yield kid
            yield from elements(kid)
