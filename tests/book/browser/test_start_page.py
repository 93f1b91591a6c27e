"""The first page that a learner sees: JupyterLab with a list of links to the labs."""

import json

import pytest
from playwright.sync_api import Browser, expect

from parlab import progress
from parlab.runtime.paths import ROOT
from parlab_staff.course.percent_source import read_lab
from tests.book.browser.lab_server import LabServer
from tests.book.browser.lab_window import OPEN_MS, LabWindow
from tests.unit.test_start_page import rows


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [1, pytest.param(100, marks=pytest.mark.nightly)])
def test_jupyterlab_opens_on_the_list_of_labs_and_its_links_open_them(
    chromium: Browser, jupyterlab: LabServer, count: int
) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(OPEN_MS)
        page.goto(f"{jupyterlab.url}?token={jupyterlab.token}")
        # jupyterlab-myst has rendered a table without markup.
        start = page.locator(".jp-MarkdownViewer")
        expect(start.locator("h1")).to_have_text("The labs", timeout=OPEN_MS)
        expect(start.locator("table").first.locator("a")).to_have_count(len(rows()))
        expect(start).not_to_contain_text("**")

        for file, (name, _, _) in [*rows().items()][:count]:
            page.locator("#jp-main-dock-panel").get_by_role("tab", name="START.md").click()
            start.get_by_role("link", name=name).first.click()
            expect(page.get_by_role("tab", name=file)).to_be_visible(timeout=OPEN_MS)
            title = page.locator(".jp-Notebook:visible h1").first
            expect(title).to_contain_text(name.split(maxsplit=1)[1], timeout=OPEN_MS)
        # By now, JupyterLab would have asked in a corner whether it may fetch news.
        expect(page.locator(".Toastify__toast")).to_have_count(0)


@pytest.mark.timeout(600)
def test_the_page_shows_progress_and_that_hints_unfold(
    chromium: Browser, jupyterlab: LabServer
) -> None:
    exercises = read_lab(ROOT / "solutions" / "01_mpi.py").keys
    progress.record("ring_shift", jupyterlab.root / "labs")
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(OPEN_MS)
        page.goto(f"{jupyterlab.url}?token={jupyterlab.token}")
        row = page.locator(".jp-MarkdownViewer tr", has_text="01 Message passing")
        line = f"■{'□' * (len(exercises) - 1)} 1 of {len(exercises)}"
        expect(row).to_contain_text(line, timeout=OPEN_MS)

        LabWindow(page, jupyterlab, "labs/01_mpi.ipynb")
        page.wait_for_function(
            """() => { const hint = document.querySelector(".jp-Notebook summary");
                return hint && getComputedStyle(hint, "::before").content.includes("▸"); }"""
        )


@pytest.mark.timeout(600)
def test_settings_of_the_course_reach_jupyterlab(chromium: Browser, jupyterlab: LabServer) -> None:
    expected = json.loads((ROOT / "parlab" / "setup" / "jupyterlab" / "overrides.json").read_text())
    with chromium.new_context() as context:
        for plugin, settings in expected.items():
            answer = context.request.get(
                f"{jupyterlab.url}lab/api/settings/{plugin}?token={jupyterlab.token}"
            )
            properties = answer.json()["schema"]["properties"]
            assert {name: properties[name]["default"] for name in settings} == settings
