"""Completes the tags of a PDF from Chromium, as PDF/UA-1 (ISO 14289-1) requires.

Chromium tags the text of the pages and writes the language. It does not mark running headers and
borders as decoration, describe links, or add a body to items of lists.
"""

import html
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pypdf import PdfReader, PdfWriter
from pypdf.generic import (
    ArrayObject,
    DictionaryObject,
    IndirectObject,
    NameObject,
    NullObject,
    StreamObject,
    TextStringObject,
)

# pypdf warns about the number of objects in files from Chromium, which readers cannot change.
logging.getLogger("pypdf").setLevel(logging.ERROR)

# Chromium writes each of these on a separate line, and never inside of a text object.
_MARK = re.compile(rb"^(?:/\w+.*B[DM]C|EMC|(?P<form>/\w+) Do)$", re.MULTILINE)
# Types of structure elements that only PDF 2.0 has, and their types in older versions.
_ROLES = {"/Strong": "/Span", "/Em": "/Span"}
_METADATA = """\
<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"
 xmlns:pdfuaid="http://www.aiim.org/pdfua/ns/id/">
<dc:title><rdf:Alt><rdf:li xml:lang="x-default">{title}</rdf:li></rdf:Alt></dc:title>
<pdfuaid:part>1</pdfuaid:part>
</rdf:Description>
</rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""


def complete(printed: Path, output: Path) -> None:
    """Write the PDF `printed` to `output` with complete tags."""
    pages, forms = destinations(printed), {}
    pdf = PdfWriter(clone_from=printed, keep_initial_header=True)
    for page in pdf.pages:
        _mark_artifacts(page["/Contents"], page["/Resources"], forms)
        for link in page.get("/Annots", []):
            _describe(link.get_object(), pages)
    _correct_bookmarks(pdf.root_object.get("/Outlines", DictionaryObject()))
    root = pdf.root_object["/StructTreeRoot"]
    names = {NameObject(name): NameObject(role) for name, role in _ROLES.items()}
    root[NameObject("/RoleMap")] = DictionaryObject(names)
    for element in list(_elements(root)):
        if element["/S"] == "/LI":
            _give_body(pdf, element)
        elif element["/S"] == "/Figure" and _is_part_of_figure(element):
            element[NameObject("/S")] = NameObject("/NonStruct")
    pdf.xmp_metadata = _METADATA.format(title=html.escape(pdf.metadata.title)).encode()
    names = {
        NameObject("/Type"): NameObject("/Metadata"),
        NameObject("/Subtype"): NameObject("/XML"),
    }
    pdf.root_object["/Metadata"].update(names)
    pdf.compress_identical_objects()
    pdf.write(output)


def destinations(pdf: Path) -> dict[str, int]:
    """Return the page number, from 1, to which each name in a PDF leads."""
    reader = PdfReader(pdf)
    found = reader.named_destinations.items()
    pages = {name: reader.get_destination_page_number(place) for name, place in found}
    return {name.removeprefix("/"): page + 1 for name, page in pages.items() if page is not None}


def _mark_artifacts(stream: StreamObject, resources: DictionaryObject, tagged_forms: dict) -> bool:
    """Mark the untagged content of a page or form as artifacts. Return False if nothing is tagged.

    A form is a part of a page that Chromium draws as a whole, such as a clipped one. `tagged_forms`
    has the results for forms, by the numbers of their objects.
    """
    drawn = resources.get("/XObject", {})
    tagged = {name for name in drawn if _is_tagged_form(drawn.raw_get(name), tagged_forms)}
    content = stream.get_data()
    if not tagged and b"/MCID" not in content:
        return False
    stream.set_data(with_artifacts(content, tagged))
    return True


def _is_tagged_form(reference: IndirectObject, tagged_forms: dict[int, bool]) -> bool:
    drawn = reference.get_object()
    if drawn["/Subtype"] != "/Form":
        return False
    if reference.idnum not in tagged_forms:
        tagged_forms[reference.idnum] = _mark_artifacts(
            drawn, drawn.get("/Resources", {}), tagged_forms
        )
    return tagged_forms[reference.idnum]


def with_artifacts(content: bytes, tagged: set[str]) -> bytes:
    """Mark everything in a content stream that has no tag as an artifact.

    `tagged` are the names of forms that contain tags.
    """
    parts, end, depth = [b"/Artifact BMC\n"], 0, 0
    for mark in _MARK.finditer(content):
        draws = mark[0].endswith(b"Do")
        opens = mark[0].endswith(b"C") and mark[0] != b"EMC"
        if draws and (depth > 0 or mark["form"].decode() not in tagged):
            continue
        parts.append(content[end : mark.start()])
        if depth == 0:
            parts.append(b"EMC\n")
        parts.append(mark[0])
        depth += 0 if draws else 1 if opens else -1
        if depth == 0:
            parts.append(b"\n/Artifact BMC")
        end = mark.end()
    return b"".join([*parts, content[end:], b"\nEMC\n"])


def _describe(annotation: DictionaryObject, pages: dict[str, int]) -> None:
    action = annotation.get("/A", {})
    where = action.get_object().get("/URI") if action else None
    if where is None and "/Dest" in annotation:
        where = f"page {pages[str(annotation['/Dest']).removeprefix('/')]}"
    annotation[NameObject("/Contents")] = TextStringObject(f"Go to {where}")


def _correct_bookmarks(parent: DictionaryObject) -> None:
    """Correct bookmarks in which Chromium 156 repeats the text of the heading."""
    entry = parent.get("/First", NullObject()).get_object()
    while isinstance(entry, DictionaryObject):
        title = str(entry["/Title"])
        half = title[: len(title) // 2]
        if title == half + half:
            entry[NameObject("/Title")] = TextStringObject(half)
        _correct_bookmarks(entry)
        entry = entry.get("/Next", NullObject()).get_object()


def _elements(root: DictionaryObject) -> Iterator[DictionaryObject]:
    """Yield all structure elements below the root of the structure tree."""
    todo = [root]
    while todo:
        for kid in _kids(todo.pop()):
            if isinstance(kid, DictionaryObject) and "/S" in kid:
                yield kid
                todo.append(kid)


def _kids(element: DictionaryObject) -> list:
    kids = element.get("/K", ArrayObject()).get_object()
    return [kid.get_object() for kid in (kids if isinstance(kids, ArrayObject) else [kids])]


def _is_part_of_figure(element: DictionaryObject) -> bool:
    """Return True for a shape in a figure, if the figure has a description and the shape has none.

    Chromium tags some shapes of an SVG as separate figures.
    """
    parent = element["/P"]
    while "/Alt" not in element and "/S" in parent:
        if parent["/S"] == "/Figure" and "/Alt" in parent:
            return True
        parent = parent["/P"]
    return False


def _give_body(pdf: PdfWriter, item: DictionaryObject) -> None:
    """Put what follows the label of a list's item into a body."""
    kids = item.get("/K", ArrayObject()).get_object()
    kids = list(kids) if isinstance(kids, ArrayObject) else [kids]
    labels = [kid for kid in kids if _type(kid) == "/Lbl"]
    others = ArrayObject(kid for kid in kids if _type(kid) != "/Lbl")
    body = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/StructElem"),
            NameObject("/S"): NameObject("/LBody"),
            NameObject("/P"): item.indirect_reference,
            NameObject("/K"): others,
        }
    )
    reference = pdf._add_object(body)
    for kid in others:
        if _type(kid):
            kid.get_object()[NameObject("/P")] = reference
    item[NameObject("/K")] = ArrayObject([*labels, reference])


def _type(kid: Any) -> str:
    """Return the type of a structure element; "" for a piece of a page's content."""
    kid = kid.get_object()
    return kid.get("/S", "") if isinstance(kid, DictionaryObject) else ""
