"""What PDF/UA-1 requires of the tags of a PDF, as far as its structure shows it."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pypdf import PdfReader
from pypdf.generic import ArrayObject, DictionaryObject

SEQUENCE = re.compile(rb"^(/\w+.*B[DM]C|EMC)$", re.MULTILINE)
FORM = re.compile(rb"^(/\w+) Do$", re.MULTILINE)
PAINTS = re.compile(rb"\b(Tj|TJ|f|S|Do|sh)$", re.MULTILINE)


def faults(pdf: Path) -> list[str]:
    """Return what is wrong with the tags of a PDF from Chromium; an empty list if nothing is."""
    reader = PdfReader(pdf)
    root = reader.root_object
    title = reader.metadata and reader.metadata.title
    wanted = {
        "no language": root.get("/Lang"),
        "not tagged": root.get("/MarkInfo", {}).get("/Marked"),
        "no title": title,
        "a title that no window shows": root.get("/ViewerPreferences", {}).get("/DisplayDocTitle"),
        "no name of the standard": "pdfuaid:part"
        in str(root.get("/Metadata") and root["/Metadata"].get_data()),
    }
    found = [fault for fault, fine in wanted.items() if not fine]
    for number, page in enumerate(reader.pages, 1):
        if page.get("/Tabs") != "/S":
            found.append(f"page {number}: the tab key does not follow the structure")
        if paints_untagged(page["/Contents"].get_data(), page["/Resources"]):
            found.append(f"page {number}: content that is neither tagged nor decoration")
        forms = Counter(tagged_forms(page))
        if max(forms.values(), default=0) > 1:
            found.append(f"page {number}: tagged content that is painted twice")
        links = [link.get_object() for link in page.get("/Annots", [])]
        found += [
            f"page {number}: a link without a description"
            for link in links
            if not link.get("/Contents")
        ]
    return found + list(faults_of_elements(reader))


def paints_untagged(content: bytes, resources: DictionaryObject) -> bool:
    """Return True if something is painted outside of marked sequences, also within forms."""
    outside = untagged(content)
    for form in FORM.findall(outside):
        drawn = resources["/XObject"][form.decode()]
        if b"BDC" in drawn.get_data() or "/XObject" in drawn.get("/Resources", {}):
            if paints_untagged(drawn.get_data(), drawn["/Resources"]):
                return True
            outside = outside.replace(form + b" Do", b"")
    return bool(PAINTS.search(outside))


def tagged_forms(painted: DictionaryObject) -> Iterator[int]:
    """Yield the number of each tagged form that a page or a form paints, as often as it does."""
    stream = painted.get("/Contents", painted).get_object()
    forms = painted.get("/Resources", {}).get("/XObject", {})
    for name in FORM.findall(stream.get_data()):
        form = forms[name.decode()]
        if form["/Subtype"] == "/Form":
            yield from tagged_forms(form)
            if b"/MCID" in form.get_data():
                yield forms.raw_get(name.decode()).idnum


def untagged(content: bytes) -> bytes:
    """Return the part of a page's content that is outside of marked sequences."""
    parts, depth = [], 0
    for part in SEQUENCE.split(content):
        if part == b"EMC":
            depth -= 1
        elif SEQUENCE.fullmatch(part):
            depth += 1
        elif depth == 0:
            parts.append(part)
    return b"\n".join(parts)


def elements(element: DictionaryObject) -> Iterator[DictionaryObject]:
    """Yield the structure elements below one, in the order of reading."""
    for kid in kids(element):
        yield kid
        yield from elements(kid)


def kids(element: DictionaryObject) -> list[DictionaryObject]:
    found = element.get("/K", ArrayObject()).get_object()
    found = [kid.get_object() for kid in (found if isinstance(found, ArrayObject) else [found])]
    return [kid for kid in found if isinstance(kid, DictionaryObject) and "/S" in kid]


def faults_of_elements(reader: PdfReader) -> Iterator[str]:
    tree = reader.root_object["/StructTreeRoot"]
    level = 0
    for element in elements(tree):
        kind, parts = element["/S"], [kid["/S"] for kid in kids(element)]
        if kind in ("/Strong", "/Em") and kind not in tree.get("/RoleMap", {}):
            yield f"{kind} has no role"
        elif kind == "/Figure" and not re.search(r"\w", element.get("/Alt", "")):
            yield "a figure without a description"
        elif kind == "/Figure" and element["/Alt"].endswith(".svg"):
            yield f"a figure whose description is its file: {element['/Alt']}"
        elif kind == "/LI" and not set(parts) <= {"/Lbl", "/LBody"}:
            yield f"an item of a list with {parts}"
        elif match := re.fullmatch(r"/H(\d)", kind):
            if int(match[1]) > level + 1:
                yield f"a heading of level {match[1]} after one of level {level}"
            level = int(match[1])
        elif kind == "/Table":
            widths = {
                sum(map(columns, kids(row))) for row in elements(element) if row["/S"] == "/TR"
            }
            if len(widths) > 1 and not any(spans_rows(cell) for cell in elements(element)):
                yield f"a table with rows of {sorted(widths)} cells"


def columns(cell: DictionaryObject) -> int:
    return attribute(cell, "/ColSpan")


def spans_rows(cell: DictionaryObject) -> bool:
    return attribute(cell, "/RowSpan") > 1


def attribute(cell: DictionaryObject, name: str) -> int:
    given = cell.get("/A", ArrayObject()).get_object()
    given = [part.get_object() for part in (given if isinstance(given, ArrayObject) else [given])]
    return next((int(part[name]) for part in given if name in part), 1)
