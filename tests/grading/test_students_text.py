"""In reports, a student's text is never HTML, Markdown, a formula, code, or an unsafe file name."""

import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote

import pytest

from parlab_staff.gradebook.reports.feedback import escaped, fenced
from parlab_staff.gradebook.reports.spreadsheet import cell
from parlab_staff.gradebook.reports.text import plain
from parlab_staff.grading.file_names import file_name
from tests.grading.gradebooks import HOSTILE, Page, entry, exercise, hostile_entry, table, written


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    entries = [hostile_entry(text) for text in HOSTILE]
    return written(tmp_path_factory.mktemp("out"), *entries, command=HOSTILE[0], date=HOSTILE[1])


# Files


@pytest.mark.parametrize("name", ["anna", "anna müller", "陈伟", "गीता", "a_b-c.d (2)", "o.k@x"])
def test_a_readable_name_stays_as_it_is(name: str) -> None:
    assert file_name(name) == name


def test_file_names_are_safe_and_unique_on_all_systems() -> None:
    students = [*HOSTILE, "a/b", "a\\b", "a:b", "a_b", "ß", "ss", "nul.txt", "ﬁ", "fi", "x.", "x"]
    names = [file_name(student) for student in students]
    for name in names:
        assert len(f"{name}.html".encode()) <= 255
        assert not re.search(r'[\x00-\x1f/\\:*?"<>|\u202e\ud800-\udfff]', name), name
        assert name.strip(" .") == name != "" and not name.startswith("-")
        assert name.split(".")[0].lower() not in ("con", "nul")
    compared = {unicodedata.normalize("NFKC", name).casefold() for name in names}
    assert len(compared) == len(students)


@pytest.mark.parametrize("victim", ["a/b", "Anna"])
def test_no_name_replaces_another_students_file(victim: str) -> None:
    assert file_name(file_name(victim)) != file_name(victim)


# grades.csv


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", " =", "\n=", "＝"])
def test_no_cell_starts_a_formula(start: str) -> None:
    assert cell(f"{start}1+1").startswith("'")
    assert cell("1+1=2, a-b") == "1+1=2, a-b"


def test_no_cell_of_a_hostile_class_is_a_formula_or_breaks_a_row(hostile: Path) -> None:
    rows = table(hostile)
    assert len(rows) == len(HOSTILE)
    for row in rows:
        assert None not in row and None not in row.values()
        for text in row.values():
            # Some spreadsheets separate cells at semicolons.
            for part in text.split(";"):
                assert not re.match(r"\s*[=+\-@]", part), row
            assert text.isprintable(), text
    # Quotes keep a semicolon inside of its cell.
    assert (hostile / "grades.csv").read_text(encoding="utf-8-sig").startswith('"student","name"')
    students = {row["student"] for row in rows}
    assert {"'=HYPERLINK(1)", "'-rf", "a;'=1+1", r"lone \udc80", "red\\x00\\x07"} <= students


# junit.xml


def test_names_that_look_the_same_have_different_suites(tmp_path: Path) -> None:
    """A control character is shown escaped, and another student may have that text as a name."""
    written(tmp_path, entry("a\x07"), entry("a\\x07"), entry("a\\x07", exercise("ring", 0)))
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    names = [suite.get("name") for suite in root.findall("testsuite")]
    assert len(set(names)) == 3 and all(name.startswith("a\\x07") for name in names)


def test_junit_of_a_hostile_class_is_xml(hostile: Path) -> None:
    suites = ElementTree.parse(hostile / "junit.xml").getroot().findall("testsuite")
    names = [suite.get("name") for suite in suites]
    assert len(names) == len(HOSTILE)
    assert {"<script>alert(1)</script>", "red\\x00\\x07", "]]></testsuite>\\ufffe"} <= set(names)


# Pages


def test_pages_load_nothing_and_run_nothing(hostile: Path) -> None:
    pages = sorted(hostile.rglob("*.html"))
    assert len(pages) == len(HOSTILE) + 1
    for path in pages:
        page = Page(path)
        assert {tag for tag, _ in page.tags} <= {
            *("html", "head", "meta", "title", "style", "body", "header", "main", "section"),
            *("article", "footer", "div", "p", "h1", "h2", "h3", "strong", "span", "i", "code"),
            *("pre", "a", "br", "dl", "dt", "dd", "ol", "ul", "li", "small", "table", "thead"),
            *("tbody", "tr", "th", "td", "details", "summary"),
        }, path
        for _, attributes in page.tags:
            assert not any(name.startswith("on") or name == "src" for name in attributes), path
        metas = [a for tag, a in page.tags if tag == "meta"]
        (policy,) = [a["content"] for a in metas if "Policy" in (a.get("http-equiv") or "")]
        assert policy and policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
        style = re.search("<style>(.*?)</style>", path.read_text(), re.DOTALL)
        assert style and "url(" not in style[1] and "@import" not in style[1]
        assert "prefers-color-scheme: dark" in style[1]


def test_text_of_students_is_shown_as_it_is(hostile: Path) -> None:
    text = " ".join(Page(path).text for path in (hostile / "feedback").glob("*.html"))
    for shown_as in ["<script>alert(1)</script>", "{{ 7 * 7 }}", r"lone \udc80", r"\u202eturned"]:
        assert shown_as in text
    assert "49" not in Page(hostile / "summary.html").text
    for path in hostile.rglob("*.*"):
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", path.read_text()), path


def test_the_summary_links_to_each_students_feedback(hostile: Path) -> None:
    links = {unquote(link) for link in Page(hostile / "summary.html").links()}
    there = {path.relative_to(hostile).as_posix() for path in hostile.glob("feedback/*.html")}
    assert links == there | {"grades.csv", "junit.xml"}


# Markdown


@pytest.mark.parametrize("inside", ["", "```", "a\n````\n# title", "`" * 50, "~~~"])
def test_nothing_in_a_fenced_block_ends_it(inside: str) -> None:
    first, *body, last = fenced(inside).split("\n")
    assert set(last) == {"`"} and first == f"{last}text" and len(last) >= 3
    assert "\n".join(body) == inside
    assert last not in inside


def test_a_name_is_no_markdown(hostile: Path) -> None:
    assert escaped("[a](b) <c> *d* `e` # |\nx") == (r"\[a\]\(b\) \<c\> \*d\* \`e\` \# \|\\nx")
    for path in (hostile / "feedback").glob("*.md"):
        title, _ = path.read_text().split("\n\n", 1)
        assert title.startswith("# Lab") and "\n" not in title
        assert not re.search(r"(?<!\\)[<\[`*]", title)


# Text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x.invalid\x1b\\link\x1b]8;;\x07", "link"),
        ("\x9b31mred", "red"),
        ("a\r\nb\rc\td", "a\nb\nc\td"),
        ("\x00\x7f\x85\ufffe\u2066", r"\x00\x7f\x85\ufffe\u2066"),
        ("\ud800", r"\ud800"),
        ("日本 ü 🙂", "日本 ü 🙂"),
    ],
)
def test_text_is_made_harmless_and_stays_readable(text: str, expected: str) -> None:
    assert plain(text) == expected
