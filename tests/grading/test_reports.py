"""The reports: their contents, and that a student's text is never HTML, a formula, or code."""

import csv
import io
import re
import stat
import unicodedata
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from parlab.runtime import paths
from parlab.runtime.paths import write_atomically
from parlab_staff.gradebook.entries import BY_HAND, Entry, Gradebook
from parlab_staff.gradebook.reports import write_reports
from parlab_staff.gradebook.reports.feedback import escaped, fenced
from parlab_staff.gradebook.reports.figures import exercise_rows, totals
from parlab_staff.gradebook.reports.misconceptions import misconceptions, normalized
from parlab_staff.gradebook.reports.spreadsheet import cell
from parlab_staff.gradebook.reports.text import plain, shown
from parlab_staff.gradebook.reports.words import OF_EXERCISE, OF_SUBMISSION, SIGNS, number
from parlab_staff.grading.file_names import file_name
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult, by_points

KEYS = ("ring", "tree")
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=http://x.invalid/a.png onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "=HYPERLINK(1)",
    "\t=1+1",
    "@SUM(1)",
    "-rf",
    "a;=1+1",
    "../../x",
    "..",
    "",
    "x" * 300,
    "ü" * 300,
    "CON",
    "Anna",
    "anna",
    "two\nlines, \"quoted\"",
    "\x1b[31mred\x1b[0m\x00\x07",
    "lone \udc80",
    "]]></testsuite>\ufffe",
    "[link](http://x.invalid) `code` | # *",
    "\u202eturned",
]  # fmt: skip


def exercise(key: str, points: float | None, message: str = "", **more) -> ExerciseResult:
    statuses = {None: GradeStatus.GRADER_ERROR, 0: GradeStatus.FAILED, 3: GradeStatus.PASSED}
    more = {"status": statuses.get(points, GradeStatus.PARTIAL)} | more
    return ExerciseResult(key=key, points=points, of=3, message=message, **more)


def entry(student: str = "anna", *exercises: ExerciseResult, **more) -> Entry:
    exercises = exercises or (exercise("ring", 3), exercise("tree", 1, "tree: all ranks: look"))
    of_result = {"status": by_points(list(exercises))} | {
        name: more.pop(name) for name in ("status", "message", "notes", "seconds") if name in more
    }
    result = SubmissionResult(student, "01_mpi", "a.ipynb", exercises=list(exercises), **of_result)
    return Entry(result, **more)


def hostile_entry(text: str) -> Entry:
    exercises = [exercise("ring", 1, text, notes=[text]), exercise("tree", None, f"\n{text}")]
    return entry(text, *exercises, message=text, notes=[text], name=text, late_text=text)


def missing(student: str) -> Entry:
    stubs = [exercise(key, 0, status=GradeStatus.MISSING) for key in KEYS]
    return entry(student, *stubs, status=GradeStatus.MISSING)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open, f"{path.name}: not closed: {self.open}"

    def handle_starttag(self, tag: str, attributes) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.tags if tag == "a"]


def written(folder: Path, *entries: Entry, **more) -> Path:
    write_reports(folder, Gradebook("01_mpi", entries, **more))
    return folder


def table(folder: Path) -> list[dict[str, str]]:
    text = (folder / "grades.csv").read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    entries = [hostile_entry(text) for text in HOSTILE]
    return written(tmp_path_factory.mktemp("out"), *entries, command=HOSTILE[0], date=HOSTILE[1])


def test_each_file_is_written_and_returned(tmp_path: Path) -> None:
    paths = write_reports(tmp_path, Gradebook("01_mpi", (entry("bo"), entry("anna"))))
    names = [path.relative_to(tmp_path).as_posix() for path in paths]
    assert names == [
        *("feedback/anna.html", "feedback/anna.md", "feedback/bo.html", "feedback/bo.md"),
        *("grades.csv", "junit.xml", "summary.html"),
    ]
    assert sorted(paths) == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_the_same_gradebook_gives_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    entries = [hostile_entry(text) for text in HOSTILE]
    first = written(tmp_path / "first", *entries)
    second = written(tmp_path / "second", *reversed(entries))
    names = {path.relative_to(first) for path in first.rglob("*") if path.is_file()}
    assert len(names) == 2 * len(entries) + 3
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_a_class_without_students_has_reports(tmp_path: Path) -> None:
    written(tmp_path)
    assert table(tmp_path) == []
    assert "handed in 0" in Page(tmp_path / "summary.html").text


# Files


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    path = write_atomically(tmp_path / "a.txt", "before")
    monkeypatch.setattr(paths.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(path, "after")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "before")]


def test_a_file_is_as_readable_as_others_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").touch()
    path = write_atomically(tmp_path / "a.txt", "lone \udc80")
    mode = (tmp_path / "plain.txt").stat().st_mode
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(mode)
    assert path.read_text() == r"lone \udc80"


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


def test_the_table_has_rows_for_students_and_columns_for_exercises(
    tmp_path: Path,
) -> None:
    late = entry("bo", name="Bo Chen", late=True, late_text="1 day late", factor=0.9)
    stranger = entry("carl", on_roster=False, message="an old release\nmore")
    assert table(written(tmp_path, stranger, late)) == [
        {
            **{"student": "bo", "name": "Bo Chen", "ring": "3", "tree": "1", "total": "3.6"},
            **{"of": "6", "late": "1 day late", "status": "partial", "note": ""},
        },
        {
            **{"student": "carl", "name": "", "ring": "3", "tree": "1", "total": "4", "of": "6"},
            **{"late": "", "status": "partial", "note": "not on the roster; an old release"},
        },
    ]
    assert (tmp_path / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf")


def test_an_ungraded_exercise_is_blank_and_never_zero(tmp_path: Path) -> None:
    slip = exercise("ring", 0, status=GradeStatus.GRADER_ERROR)
    whole = entry("carl", status=GradeStatus.GRADER_ERROR)
    rows = table(
        written(tmp_path, entry("anna", exercise("ring", None), exercise("tree", 3)),
                entry("bo", slip, exercise("tree", 3)), whole)
    )  # fmt: skip
    assert [(row["ring"], row["tree"], row["total"]) for row in rows] == [
        ("", "3", ""),
        ("", "3", ""),
        ("3", "1", ""),
    ]
    assert rows[0]["note"] == "not graded: ring"
    page = Page(tmp_path / "feedback" / "anna.html").text
    assert "no score of 3" in page and "No total yet of 6 points" in page
    assert "not your fault and not a zero" in page
    assert "no score of 3" in (tmp_path / "feedback" / "anna.md").read_text()


def test_points_added_by_hand_have_a_column_if_there_are_any(tmp_path: Path) -> None:
    added = ExerciseResult(
        BY_HAND, GradeStatus.PASSED, 1.5, 0, "corrected by hand: 1.5 points added"
    )
    rows = table(written(tmp_path, entry("anna", exercise("ring", 1), added), entry("bo")))
    assert (rows[0][BY_HAND], rows[0]["total"], rows[1][BY_HAND]) == ("1.5", "2.5", "")
    assert "By hand +1.5" in Page(tmp_path / "feedback" / "anna.html").text
    assert "By hand" in (tmp_path / "feedback" / "anna.md").read_text()


def test_lateness_takes_nothing_off_points_added_by_hand(tmp_path: Path) -> None:
    added = ExerciseResult(BY_HAND, GradeStatus.PASSED, 1, 0, "corrected by hand: 1 point added")
    rows = table(written(tmp_path, entry("anna", exercise("ring", 2), added, factor=0.5)))
    assert rows[0]["total"] == "2"


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


def test_junit_has_suites_for_students_and_cases_for_exercises(tmp_path: Path) -> None:
    kinds = {
        GradeStatus.PASSED: None,
        **dict.fromkeys((GradeStatus.PARTIAL, GradeStatus.FAILED), "failure"),
        **dict.fromkeys((GradeStatus.MISSING, GradeStatus.NOT_REACHED), "skipped"),
        **dict.fromkeys((GradeStatus.ERROR, GradeStatus.TIMEOUT, GradeStatus.DIED), "error"),
        GradeStatus.GRADER_ERROR: "error",
    }
    all_of_them = [exercise(s.value, 0, "first\nsecond", status=s) for s in kinds]
    written(tmp_path, entry("anna", *all_of_them, seconds=12.5), entry("bo"))
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    anna, bo = root.findall("testsuite")
    assert (anna.get("name"), anna.get("time"), bo.get("name")) == ("anna", "12.5", "bo")
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("11", "3", "4")
    for case, (status, kind) in zip(anna.findall("testcase"), kinds.items(), strict=True):
        assert (case.get("name"), case.get("classname")) == (status.value, "01_mpi")
        assert [child.tag for child in case] == ([kind] if kind else [])
        if kind:
            score = "no score" if status is GradeStatus.GRADER_ERROR else "0"
            assert case[0].get("message") == f"{score} of 3: first"
            assert (case[0].get("type"), case[0].text) == (status.value, "first\nsecond")


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


def test_feedback_says_how_each_exercise_went_and_never_the_notes(tmp_path: Path) -> None:
    seen = exercise("ring", 1, "all ranks: look\n  rank 0  at line 3", notes=["SECRET of ring"])
    timeout = exercise("tree", 0, "stopped", status=GradeStatus.TIMEOUT)
    fields = {"late": True, "late_text": "2 hours late: 50 % of it", "message": "old release"}
    written(tmp_path, entry("anna", seen, timeout, notes=["SECRET"], factor=0.5, **fields))
    page = (tmp_path / "feedback" / "anna.html").read_text()
    assert "<pre>all ranks: look\n  rank 0  at line 3</pre>" in page
    text = Page(tmp_path / "feedback" / "anna.html").text
    for words in ["0.5 of 6 points", "1 of 3", "took too long", "2 hours late", "old release"]:
        assert words in text
    markdown = (tmp_path / "feedback" / "anna.md").read_text()
    assert "```text\nall ranks: look\n  rank 0  at line 3\n```" in markdown
    assert "0.5 of 6" in markdown and "2 hours late" in markdown and "old release" in markdown
    assert "SECRET" not in page + markdown
    assert "SECRET of ring" in Page(tmp_path / "summary.html").text


def test_feedback_says_how_the_points_came_about(tmp_path: Path) -> None:
    """It shows the parts of an exercise, and the total before the deduction for lateness."""
    parts = "check 0 of 2, further check 1 of 1"
    late = {"late": True, "late_text": "1 day late: 50 % are taken off", "factor": 0.5}
    written(tmp_path, entry("anna", exercise("ring", 1, parts=parts), exercise("tree", 3), **late))
    page = Page(tmp_path / "feedback" / "anna.html").text
    markdown = (tmp_path / "feedback" / "anna.md").read_text()
    assert parts in page and "2 of 6" in page
    for text in (page, markdown):
        assert "4 of 6 points were earned before that" in text
    assert "further check 1 of 1" in markdown


def test_a_long_message_is_cut_and_says_by_how_much(tmp_path: Path) -> None:
    written(tmp_path, entry("anna", exercise("ring", 0, "x" * 8_000 + "y" * 12_345)))
    for path in (tmp_path / "feedback").iterdir():
        text = path.read_text()
        assert "x" * 8_000 in text and "xy" not in text, path
        assert "12,345 more characters are not shown" in text
    assert shown("x" * 8_000) == "x" * 8_000


def test_every_status_has_words_and_a_unique_sign() -> None:
    assert set(OF_EXERCISE) == set(OF_SUBMISSION) == set(SIGNS) == set(GradeStatus)
    assert len(set(SIGNS.values())) == len(GradeStatus)


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


@pytest.mark.parametrize(
    ("points", "text"), [(None, ""), (0, "0"), (10, "10"), (2.5, "2.5"), (1 / 3, "0.33")]
)
def test_points_are_written_shortly(points: float | None, text: str) -> None:
    assert number(points) == text


# Numbers of the summary


def test_ungraded_exercises_count_in_no_mean() -> None:
    entries = [
        entry("anna", exercise("ring", 3), exercise("tree", 0)),
        entry("bo", exercise("ring", None), exercise("tree", 1.5)),
        missing("carl"),
    ]
    tree, ring = exercise_rows(entries, list(KEYS))
    assert (tree.key, tree.share) == ("tree", 0.25)
    assert (tree.full, tree.partial, tree.nothing, tree.ungraded) == (0, 1, 1, 0)
    assert (ring.key, ring.share) == ("ring", 1.0)
    assert (ring.full, ring.partial, ring.nothing, ring.ungraded) == (1, 0, 0, 1)
    numbers = totals(entries)
    assert (numbers.count, numbers.mean, numbers.median, numbers.of) == (1, 3, 3, 6)
    assert numbers.bins == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_all_points_are_in_the_last_column_even_if_there_are_none() -> None:
    full = entry("anna", exercise("ring", 3), exercise("tree", 3))
    assert totals([full]).bins == [0] * 9 + [1]
    worthless = ExerciseResult("ring", GradeStatus.PASSED, 0, 0)
    (row,) = exercise_rows([entry("bo", worthless)], ["ring"])
    assert (row.full, row.nothing, row.share) == (1, 0, 1.0)


def test_an_exercise_without_graded_submissions_comes_last() -> None:
    entries = [entry("anna", exercise("ring", None), exercise("tree", 3))]
    assert [(row.key, row.share) for row in exercise_rows(entries, list(KEYS))] == [
        ("tree", 1.0),
        ("ring", None),
    ]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("", ""),
        ("ring: all ranks: x holds 3.5 where 4 is right\nmore", "x holds # where # is right"),
        ("rank 2: ring: look", "look"),
        ("ring: ranks 0, 2-5: look", "look"),
        ("all ranks: ring [no_wait]: rank 2 never waits", "rank # never waits"),
        ("ring: it differs on rank 2: look", "it differs on rank #: look"),
        ("took 1,234.5 and 1e-06 s.", "took # and # s."),
        ("ring: KeyError: 'x' with 3 ranks, shape (15,) of int64", "KeyError: 'x'"),
        (
            "ring: does not end with 4 ranks; stopped while waiting",
            "does not end; stopped while waiting",
        ),
        ("ring: is a `return` missing? (with 2 ranks, root 0)", "is a `return` missing?"),
        ("ring: use `comm` (on 1 rank)", "use `comm`"),
        ("ring: start with 2 rounds", "start with # rounds"),
        ("corrected by hand: 2 of 3; fine\n\nring: rank 0: look", "look"),
        ("corrected by hand: 2 of 3; fine", ""),
        ("Interrupted. These ranks had not finished:\nrank 1  line 3: recv()", "Interrupted."),
    ],
)
def test_equal_messages_about_different_ranks_are_counted_together(message: str, text: str) -> None:
    assert normalized(exercise("ring", 1, message)) == text


def test_the_most_frequent_message_comes_first(tmp_path: Path) -> None:
    def with_messages(student: str, ring: str, tree: str) -> Entry:
        return entry(student, exercise("ring", 0, ring), exercise("tree", 0, tree))

    entries = (
        with_messages("anna", "ring: rank 1: once", "tree: index 3"),
        with_messages("bo", "ring: all ranks: index 5", "tree: index 7"),
        entry("carl", exercise("ring", None, "no device"), exercise("tree", 3)),
    )
    first, second = misconceptions(entries)
    assert (first.text, first.exercises) == ("index #", ["tree", "ring"])
    assert [e.result.student for e in first.entries] == ["anna", "bo"]
    assert (second.text, len(second.entries)) == ("once", 1)
    text = Page(written(tmp_path, *entries) / "summary.html").text
    assert "2 index # tree , ring anna , bo" in text
    assert "ring ? could not be graded: no device" in text


def test_the_summary_says_where_the_code_is_and_when_it_came(tmp_path: Path) -> None:
    noted = entry("anna", exercise("ring", 1, notes=["look at the code"]), exercise("tree", 3))
    noted.result.submitted = "2026-11-30T18:00:00+01:00"
    text = Page(written(tmp_path, noted) / "summary.html").text
    assert "a.ipynb , handed in 2026-11-30 18:00:00+01:00" in text


def test_the_summary_has_path_time_and_seconds_of_each_student(tmp_path: Path) -> None:
    anna, bo = entry("anna", seconds=20.5), entry("bo", seconds=30.0, late_text="1 hour late")
    anna.result.path, anna.result.submitted = "class/anna/x.ipynb", "2026-11-30T17:00:00.25+01:00"
    bo.result.path, bo.result.submitted = "class/bo/x.ipynb", "2026-11-30T19:00:00+01:00"
    text = Page(written(tmp_path, anna, bo, missing("carl")) / "summary.html").text
    assert "anna class/anna/x.ipynb 4 of 6 ✓ ◐ partial 2026-11-30 17:00:00+01:00 20.5" in text
    row = "bo class/bo/x.ipynb 4 of 6 ✓ ◐ partial 2026-11-30 19:00:00+01:00 1 hour late 30"
    assert row in text
    all_of_them = "50.5 for the 2 submissions that ran; median 25.25, maximum 30"
    assert all_of_them in text


def test_one_mistake_on_different_ranks_is_one_row(tmp_path: Path) -> None:
    def with_messages(student: str, message: str) -> Entry:
        return entry(student, exercise("ring", 0, message), exercise("tree", 3))

    entries = (
        with_messages("anna", "all ranks: ring [no_wait]: rank 2 never waits for its `Isend`"),
        with_messages("bo", "rank 1: ring [no_wait]: rank 0 never waits for its `Irecv`"),
        with_messages("carl", "all ranks: ring [raises]: KeyError: 1"),
        with_messages("dora", "all ranks: ring [raises]: ValueError: x"),
    )
    assert [len(group.entries) for group in misconceptions(entries)] == [2, 1, 1]


def test_the_summary_counts_the_class_and_says_how_it_was_graded(tmp_path: Path) -> None:
    entries = (
        entry("anna", late=True, late_text="1 hour late"),
        entry("bo", exercise("ring", None), exercise("tree", 3)),
        entry("carl", exercise("ring", 0), status=GradeStatus.ERROR, message="the file is empty"),
        entry("dora", on_roster=False),
        missing("emil"),
    )
    facts = {
        "solution": "s0lut10n",
        "grader": "gr4d3r",
        "command": "parlab grade x",
        "date": "2026",
    }
    ignored = ("class/notes.pdf",)
    page = Page(written(tmp_path, *entries, **facts, ignored=ignored) / "summary.html")
    for words in [
        "the grader does not recognize them as submissions. class/notes.pdf",
        *("handed in 4", "without a submission 1", "could not be graded 1", "late 1", "roster 1"),
        "Half of the class has 4 of 6 points or more",
        "carl could not be read or run: the file is empty",
        "bo no total yet (not a zero)",
        "dora not on the roster",
        "1 without a submission emil",
        *facts.values(),
    ]:
        assert words in page.text, words
