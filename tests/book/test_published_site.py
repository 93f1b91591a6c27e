"""A small course with all addresses in its `site.yml`: what only a published book has."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from PIL import Image

from parlab.runtime.paths import ROOT
from parlab_staff.book import render
from tests.book.test_book import LOADED
from tests.support.built_book import pages

ADDRESS = "https://owner.github.io/parlab/"
SITE = f"""\
address: {ADDRESS}
repository: https://github.com/owner/parlab
branch: trunk
jupyterhub: https://hub.example.edu
binder: https://mybinder.org
"""
CHAPTERS = ("01_mpi", "02_data_parallel")


def small_course(root: Path) -> Path:
    """Write a course with two chapters and the settings, pictures, and templates of this one."""
    for folder in ("_static", "_templates"):
        shutil.copytree(ROOT / "book" / folder, root / "book" / folder)
    for file in ("_config.yml", "book/references.bib"):
        shutil.copy(ROOT / file, root / file)
    (root / "site.yml").write_text(SITE)
    (root / "book" / "index.md").write_text("# Start\n\nThe course teaches ranks.\n")
    chapters = []
    for name in CHAPTERS:
        (root / "book" / f"{name}.md").write_text(f"# Chapter {name}\n\nIt explains {name}.\n")
        title = {"cell_type": "markdown", "metadata": {}, "source": f"# Lab {name}\n"}
        notebook = {"cells": [title], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        for folder in ("labs", "solutions"):
            (root / folder).mkdir(exist_ok=True)
            (root / folder / f"{name}.ipynb").write_text(json.dumps(notebook))
        sections = [{"file": f"labs/{name}"}, {"file": f"solutions/{name}"}]
        chapters.append({"file": f"book/{name}", "sections": sections})
    toc = {"format": "jb-book", "root": "book/index", "parts": [{"chapters": chapters}]}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc))
    return root


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    course = small_course(tmp_path_factory.mktemp("course"))
    work = tmp_path_factory.mktemp("work")
    assert render(course, work, "full") == 0
    return work / "_build" / "html"


def links(page: Path) -> list[str]:
    return re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', page.read_text(encoding="utf-8"))


def meta(page: Path) -> dict[str, str]:
    return dict(
        re.findall(
            r'<meta (?:property|name)="([^"]+)" content="([^"]*)"', page.read_text(encoding="utf-8")
        )
    )


def test_each_page_has_its_address_and_a_description(site: Path) -> None:
    for name in CHAPTERS:
        page = site / "book" / f"{name}.html"
        assert f'<link rel="canonical" href="{ADDRESS}book/{name}.html"' in page.read_text(
            encoding="utf-8"
        )
        described = meta(page)
        assert described["og:url"] == f"{ADDRESS}book/{name}.html"
        assert described["description"] == f"It explains {name}."
        assert described["og:title"] == f"Chapter {name}"


def test_a_shared_link_has_a_picture(site: Path) -> None:
    described = meta(site / "book" / "index.html")
    assert described["og:image"] == f"{ADDRESS}_static/social.png"
    assert "four ranks" in described["og:image:alt"]
    with Image.open(site / "_static" / "social.png") as picture:
        assert picture.size == (1200, 630)


def test_the_sitemap_lists_the_pages(site: Path) -> None:
    root = ElementTree.parse(site / "sitemap.xml").getroot()
    listed = {place.text for place in root.findall(".//{*}loc")}
    written = {f"{ADDRESS}{page}" for page in pages(site) if "/" in page}
    assert listed == written


def test_the_page_404_works_at_any_address(site: Path) -> None:
    page = site / "404.html"
    assert "This address has no page" in page.read_text(encoding="utf-8")
    found = [
        address for groups in LOADED.findall(page.read_text(encoding="utf-8")) for address in groups
    ]
    own = [address for address in [*found, *links(page)] if address.startswith(("/", "."))]
    assert len(own) > 10
    for address in own:
        assert address.startswith("/parlab/"), address
        path = address.removeprefix("/parlab/").split("?")[0].split("#")[0]
        assert (site / path).exists(), address


def test_buttons_lead_to_the_files_that_people_edit(site: Path) -> None:
    blob, edit = (f"https://github.com/owner/parlab/{kind}/trunk/" for kind in ("blob", "edit"))
    for name in CHAPTERS:
        sources = {
            f"book/{name}": f"book/{name}.md",
            f"labs/{name}": f"solutions/{name}.py",
            f"solutions/{name}": f"solutions/{name}.py",
        }
        for page, source in sources.items():
            found = links(site / f"{page}.html")
            assert f"{edit}{source}" in found, page
            assert f"{blob}{source}?plain=1" in found, page
            assert any("/issues/new?" in link and f"{page}.html" in link for link in found), page


def test_labs_open_in_jupyterhub_and_binder(site: Path) -> None:
    found = links(site / "labs" / "01_mpi.html")
    assert "https://hub.example.edu/hub/user-redirect/lab/tree/labs/01_mpi.ipynb" in found
    assert any(link.startswith("https://mybinder.org/v2/gh/owner/parlab/trunk?") for link in found)
    for page in ("book/01_mpi", "solutions/01_mpi"):
        assert not any("mybinder" in link for link in links(site / f"{page}.html"))


def neighbors(page: Path) -> list[str]:
    found = re.findall(
        r'<a class="(?:left|right)-(?:prev|next)"\s+href="([^"]+)"',
        page.read_text(encoding="utf-8"),
    )
    return [
        (page.parent / link).resolve().relative_to(page.parents[1]).as_posix() for link in found
    ]


def test_next_leads_from_a_chapter_to_its_lab_to_the_next_chapter(site: Path) -> None:
    way = ["book/index.html"]
    while len(following := neighbors(site / way[-1])) > (len(way) > 1):
        way.append(following[-1])
    expected = [f"{of}/{name}.html" for name in CHAPTERS for of in ("book", "labs")]
    assert way == ["book/index.html", *expected]
    for i in range(2, len(way)):
        assert neighbors(site / way[i])[0] == way[i - 1]


def test_each_page_of_a_chapter_links_to_the_others(site: Path) -> None:
    for of in ("book", "labs", "solutions"):
        text = (site / of / "01_mpi.html").read_text()
        row = re.search(r'<nav class="chapter-pages".*?</nav>', text, re.DOTALL)
        assert row
        assert re.findall(r">(\w+)</a>", row[0]) == ["Chapter", "Lab", "Solutions"]
        assert row[0].count("aria-current") == 1
    assert 'class="chapter-pages"' not in (site / "book" / "index.html").read_text()


def test_only_the_current_chapter_is_open_in_the_sidebar(site: Path) -> None:
    for of in ("book", "labs", "solutions"):
        text = (site / of / "02_data_parallel.html").read_text()
        folds = re.findall(r'<details([^>]*)><summary aria-label="Pages of: ([^"]+)"', text)
        assert [name for _, name in folds] == [f"Chapter {name}" for name in CHAPTERS]
        assert ["open" in opened for opened, _ in folds] == [False, True]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        for groups in LOADED.findall((site / page).read_text()):
            assert not re.match(r"(https?:)?//", "".join(groups)), page


def test_a_book_without_addresses_has_nothing_that_needs_one(full_book: Path) -> None:
    assert not (full_book / "404.html").exists() and not (full_book / "sitemap.xml").exists()
    needs = ('rel="canonical"', 'property="og:url"', "/issues/new", "mybinder", "user-redirect")
    for page in pages(full_book):
        text = (full_book / page).read_text(encoding="utf-8")
        assert not [part for part in needs if part in text], page
