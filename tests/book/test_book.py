"""Both editions of the book are complete and self-contained, and one has no solutions."""

import html
import json
import re
import tempfile
import zlib
from pathlib import Path

import pytest
import yaml
from pygments.token import Keyword

from parlab.runtime.paths import ROOT
from parlab_staff.book import build
from parlab_staff.book.figures import figure_html
from parlab_staff.book.lexer import RankCellLexer
from parlab_staff.book.notebooks import lab_page, solutions_page
from parlab_staff.book.site import Site
from parlab_staff.book.source import pages_of, stage
from tests.support.built_book import pages

# Elements that a browser loads by itself, unlike links.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|object|embed|track|input|use|image)\b"""
    r"""[^>]*?\s(?:src|srcset|data|poster|href|xlink:href)=["']([^"']+)"""
    r"""|<link\b(?![^>]*rel=["'](?:canonical|search|index|next|prev|author))[^>]*?\bhref=["']([^"']+)"""
)
STYLE_URL = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


# All tests that need the book run in one process, so that it is built once. The first of them waits
# for the build, which takes minutes on a busy machine.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]


def chapters() -> list[str]:
    """Return every page of the contents except the index."""
    return pages_of(yaml.safe_load((ROOT / "_toc.yml").read_text()))[1:]


def plain_text(path: Path) -> str:
    """Return the text of a book's file on one line without markup; "" for pictures and scripts."""
    if path.suffix == ".html":
        text = html.unescape(re.sub(r"<[^>]*>", "", path.read_text(encoding="utf-8")))
    elif path.suffix == ".ipynb":
        text = "\n".join(
            "".join(cell["source"])
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        )
    elif path.suffix in (".md", ".txt") or path.name == "searchindex.js":
        text = path.read_text(encoding="utf-8")
    elif path.name == "objects.inv":
        header, _, packed = path.read_bytes().partition(b"zlib.\n")
        text = (header + zlib.decompress(packed)).decode()
    else:
        text = ""
    return " ".join(text.split())


def texts(book: Path) -> dict[str, str]:
    """Return the text of each page, source, download, and index of a book."""
    files = (path for path in book.rglob("*") if path.is_file())
    return {path.relative_to(book).as_posix(): plain_text(path) for path in files}


def solution_lines() -> set[str]:
    """Return the lines of code that only solutions have, and that are long enough to be unique."""
    lines: set[str] = set()
    for source in (ROOT / "solutions").glob("*.py"):
        regions = re.findall(r"# BEGIN SOLUTION\n(.*?)# END SOLUTION", source.read_text(), re.S)
        lines |= {" ".join(line.split()) for region in regions for line in region.splitlines()}
    # A hint may contain a line, and a chapter may explain it.
    public = [*(ROOT / "labs").glob("*.ipynb"), *(ROOT / "book").glob("*.md")]
    shown = "\n".join(map(plain_text, public))
    return {line for line in lines if len(line) >= 24 and line not in shown}


def test_every_page_of_the_contents_is_built(full_book: Path) -> None:
    for page in [*chapters(), "book/index"]:
        assert (full_book / f"{page}.html").is_file(), page
    assert (full_book / "index.html").is_file()


def test_each_chapter_is_three_pages() -> None:
    named = chapters()
    for page in sorted((ROOT / "book").glob("[0-9]*.md")):
        assert {f"book/{page.stem}", f"labs/{page.stem}", f"solutions/{page.stem}"} <= set(named)


@pytest.mark.parametrize(
    "edition", ["full_book", pytest.param("student_book", marks=pytest.mark.nightly)]
)
def test_a_page_loads_nothing_from_elsewhere(edition: str, request: pytest.FixtureRequest) -> None:
    book = request.getfixturevalue(edition)
    for page in pages(book):
        text = (book / page).read_text()
        assert not STYLE_URL.findall(text), page
        for groups in LOADED.findall(text):
            address = "".join(groups)
            assert not re.match(r"(https?:)?//", address), (page, address)
            if not address.startswith("data:"):
                target = (book / page).parent / address.split("?")[0].split("#")[0]
                assert target.exists(), (page, address)
    for sheet in book.rglob("*.css"):
        assert not STYLE_URL.findall(sheet.read_text()), sheet.name


def test_no_page_names_a_path_of_this_machine(full_book: Path) -> None:
    paths = {f"{ROOT}/", f"{Path.home()}/", f"{tempfile.gettempdir()}/"}
    for name, text in texts(full_book).items():
        for path in paths:
            assert path not in text, (name, path)


def test_a_lab_is_downloaded_as_it_is_in_the_repository(full_book: Path) -> None:
    for name in (page for page in chapters() if page.startswith("labs/")):
        offered = full_book / "_sources" / f"{name}.ipynb"
        assert offered.read_bytes() == (ROOT / f"{name}.ipynb").read_bytes()


def test_solutions_are_folded_and_their_outputs_are_not(full_book: Path) -> None:
    for name in (page for page in chapters() if page.startswith("solutions/")):
        notebook = json.loads((ROOT / f"{name}.ipynb").read_text())
        tags = [set(cell["metadata"].get("tags", [])) for cell in notebook["cells"]]
        page = (full_book / f"{name}.html").read_text()
        folded = re.findall(r"<details class=\"[^\"]*hide[^\"]*\">.*?</details>", page, re.S)
        assert len(folded) == sum("exercise" in of for of in tags)
        for details in folded:
            assert "Show the reference solution" in details
            assert 'class="cell_output' not in details
        assert "✓" in re.sub(r"<details.*?</details>", "", page, flags=re.S)


def test_the_sources_of_the_student_edition_have_no_solution(sources: dict[str, Path]) -> None:
    lines = solution_lines()
    assert lines, "the sources in solutions/ have no marked regions"
    full = "\n".join(texts(sources["full"]).values())
    found = {line for line in lines if line in full}
    assert len(found) > 0.9 * len(lines), "this test would not see a solution"
    assert not (sources["student"] / "solutions").exists()
    for name, text in texts(sources["student"]).items():
        for line in found:
            assert line not in text, (name, line)


@pytest.mark.nightly
def test_the_student_edition_has_no_solution(full_book: Path, student_book: Path) -> None:
    lines = solution_lines()
    full = "\n".join(texts(full_book).values())
    found = {line for line in lines if line in full}
    assert len(found) > 0.9 * len(lines), "this test would not see a solution"

    assert not (student_book / "solutions").exists()
    assert not (student_book / "_sources" / "solutions").exists()
    for name, text in texts(student_book).items():
        for line in found:
            assert line not in text, (name, line)
    for page in pages(student_book):
        assert "solutions/" not in (student_book / page).read_text(), page
    for index in ("searchindex.js", "objects.inv"):
        assert "solutions/" not in texts(student_book)[index]


def hidden_checks() -> set[str]:
    """Return the code of all hidden checks, each on one line."""
    found: set[str] = set()
    for source in (ROOT / "solutions").glob("*.py"):
        cells = re.split(r"^# %%(?!px)", source.read_text(), flags=re.MULTILINE)
        hidden = [cell for cell in cells if cell.startswith(' tags=["hidden-check"]')]
        code = [re.sub(r"^.*\n(# %%px.*\n)?", "", cell, count=1) for cell in hidden]
        found |= {" ".join(text.split()) for text in code}
    return found


def test_the_sources_of_the_student_edition_have_nothing_for_instructors(
    sources: dict[str, Path],
) -> None:
    hidden = hidden_checks()
    assert len(hidden) > 10
    for name, text in texts(sources["student"]).items():
        assert "instructors" not in name
        assert "instructors" not in text, name
        assert not any(check in text for check in hidden), name


@pytest.mark.nightly
def test_the_student_edition_has_nothing_for_instructors(
    full_book: Path, student_book: Path
) -> None:
    hidden = hidden_checks()
    assert any(text in plain_text(full_book / "book" / "instructors.html") for text in hidden)
    for name, text in texts(student_book).items():
        assert "instructors" not in name
        assert not any(check in text for check in hidden), name
    for page in pages(student_book):
        assert "instructors" not in (student_book / page).read_text(), page


def test_the_index_of_the_student_edition_describes_two_pages_a_chapter(
    sources: dict[str, Path],
) -> None:
    index = {edition: plain_text(root / "book" / "index.md") for edition, root in sources.items()}
    assert "**The solutions** show the lab" in index["full"]
    assert "The solutions" not in index["student"].replace("*", "")


def test_figures_are_data_and_text() -> None:
    title = 'Small "messages"<br>pay </script>'
    made = figure_html({"data": [{"name": "</script>"}], "layout": {"title": {"text": title}}})
    assert made.count("</script>") == 1
    assert "<figcaption>Small &quot;messages&quot; pay &lt;/script&gt;</figcaption>" in made


def markdown(*texts: str) -> dict:
    """Return a notebook of Markdown cells."""
    cells = [{"cell_type": "markdown", "metadata": {}, "source": text} for text in texts]
    return {"cells": cells, "metadata": {}}


def test_a_notebook_becomes_a_page_with_one_title() -> None:
    notebook = markdown("# Lab\ntext\n## Start", "# Part A\n```\n# a comment\n```", "## One")
    page = lab_page(notebook, "01_mpi", Site())
    first, second, third = (cell["source"] for cell in page["cells"])
    assert first.startswith("# Lab\n\n:::{tip}")
    assert first.endswith("text\n### Start")
    assert (second, third) == ("## Part A\n```\n# a comment\n```", "### One")
    assert notebook == markdown(
        "# Lab\ntext\n## Start", "# Part A\n```\n# a comment\n```", "## One"
    )


def test_the_graders_cells_are_not_on_the_page_of_solutions() -> None:
    notebook = markdown("# Lab")
    notebook["cells"].append(
        {"cell_type": "code", "metadata": {"tags": ["hidden-check"]}, "source": "values()"}
    )
    page = solutions_page(notebook, "01_mpi")
    assert page["cells"][0]["source"].startswith("# Solutions of Lab")
    assert page["cells"][1]["metadata"]["tags"] == ["hidden-check", "remove-cell"]


def test_rank_cells_are_coloured_as_python() -> None:
    tokens = list(RankCellLexer().get_tokens("%%px --timeout 9\nfor i in x:\n    pass\n"))
    assert (Keyword, "px") in tokens
    assert (Keyword, "for") in tokens


def test_an_unknown_edition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="full, student"):
        build("teacher")


def test_a_folder_that_is_not_writable_is_named_before_the_book_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"html is not writable .*: change its permissions"):
        build("full", tmp_path / "file" / "html")


def course(root: Path, page: str) -> Path:
    """Create a course with one page in the folder `root`."""
    (root / "book").mkdir()
    (root / "book" / "index.md").write_text(page)
    (root / "_config.yml").write_text("sphinx: {config: {extensions: [], html_theme_options: {}}}")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nparts: []\n")
    return root


def test_marked_lines_are_only_in_the_full_edition(tmp_path: Path) -> None:
    page = "# Title\n% BEGIN FULL EDITION\nsecret\n% END FULL EDITION\nend\n"
    root = course(tmp_path, page)
    stage(root, tmp_path / "f", "full")
    stage(root, tmp_path / "s", "student")
    assert (tmp_path / "f/book/index.md").read_text() == "# Title\nsecret\nend\n"
    assert (tmp_path / "s/book/index.md").read_text() == "# Title\nend\n"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("a\n% END FULL EDITION\n", r"index\.md:2"),
        ("% BEGIN FULL EDITION\n% BEGIN FULL EDITION\n", r"index\.md:2"),
        ("% BEGIN FULL EDITION\n", "without"),
    ],
)
def test_unbalanced_marks_are_named(tmp_path: Path, page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stage(course(tmp_path, page), tmp_path / "out", "student")


def test_a_lab_that_was_not_derived_is_named(tmp_path: Path) -> None:
    root = course(tmp_path, "# Title\n")
    toc = yaml.safe_load((root / "_toc.yml").read_text())
    toc["parts"] = [{"caption": "1", "chapters": [{"file": "labs/01_mpi"}]}]
    (root / "_toc.yml").write_text(yaml.safe_dump(toc))
    with pytest.raises(ValueError, match="make notebooks"):
        stage(root, tmp_path / "out", "full")
