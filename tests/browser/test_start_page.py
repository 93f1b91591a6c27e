"""What a learner sees first: JupyterLab on the list of labs, with links that open them."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from parlab.venv import ROOT
from tests.browser.lab_server import lab_server
from tests.browser.lab_window import OPEN_MS
from tests.test_start_page import rows


@pytest.mark.timeout(600)
def test_jupyterlab_opens_on_the_list_of_labs_and_its_links_open_them(
    chromium: Browser, tmp_path: Path
) -> None:
    with lab_server(ROOT, tmp_path / "jupyter") as server, chromium.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(OPEN_MS)
        page.goto(f"{server.url}?token={server.token}")
        # jupyterlab-myst has rendered it: a table, and no markup.
        start = page.locator(".jp-MarkdownViewer")
        expect(start.locator("h1")).to_have_text("The labs", timeout=OPEN_MS)
        expect(start.locator("table a")).to_have_count(len(rows()))
        expect(start).not_to_contain_text("**")

        for file, (name, _, _) in rows().items():
            page.locator("#jp-main-dock-panel").get_by_role("tab", name="START.md").click()
            start.get_by_role("link", name=name).click()
            expect(page.get_by_role("tab", name=file)).to_be_visible(timeout=OPEN_MS)
            title = page.locator(".jp-Notebook:visible h1").first
            expect(title).to_contain_text(name.split(maxsplit=1)[1], timeout=OPEN_MS)
        # JupyterLab's own question in a corner, whether it may fetch news, comes before that.
        expect(page.locator(".Toastify__toast")).to_have_count(0)


@pytest.mark.timeout(600)
def test_settings_of_the_course_reach_jupyterlab(chromium: Browser, tmp_path: Path) -> None:
    expected = json.loads((ROOT / "parlab" / "jupyterlab" / "overrides.json").read_text())
    with lab_server(ROOT, tmp_path / "jupyter") as server, chromium.new_context() as context:
        for plugin, settings in expected.items():
            answer = context.request.get(
                f"{server.url}lab/api/settings/{plugin}?token={server.token}"
            )
            properties = answer.json()["schema"]["properties"]
            assert {name: properties[name]["default"] for name in settings} == settings
