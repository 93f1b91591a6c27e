"""The labs in JupyterLab in a browser, as learners use them."""

import contextlib
import json
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, expect

from parlab.runtime.paths import ROOT
from parlab_staff.course.references import lab_of
from tests.book.browser.lab_server import LabServer
from tests.book.browser.lab_window import OPEN_MS, LabWindow

LAB = "02_data_parallel"
# The lab's first exercise, a common mistake, and the check's message about it.
EXERCISE = "sharded_sampler"
RIGHT, WRONG = "batch[rank::world_size]", "batch[::world_size]"
MESSAGE = "ranks 0 and 1 have the same share"


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def of(exercise: str, role: str, among: list[dict]) -> dict:
    """Return the cell of an exercise with this role, which is a tag."""
    return next(
        cell
        for cell in among
        if cell["metadata"].get("exercise") == exercise and role in cell["metadata"].get("tags", [])
    )


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.mark.timeout(900)
def test_a_check_reports_a_mistake_and_then_passes(
    chromium: Browser, jupyterlab: LabServer
) -> None:
    lab = cells(jupyterlab.root / "labs" / f"{LAB}.ipynb")
    exercise, check = of(EXERCISE, "exercise", lab), of(EXERCISE, "check", lab)
    before = [cell for cell in lab[: lab.index(exercise)] if cell["cell_type"] == "code"]
    solution = of(EXERCISE, "exercise", cells(ROOT / "solutions" / f"{LAB}.ipynb"))
    assert RIGHT in source(solution)

    with chromium.new_context() as context:
        window = LabWindow(context.new_page(), jupyterlab, f"labs/{LAB}.ipynb")
        for cell in before:
            printed = window.run(cell["id"])
            assert "Traceback" not in printed, printed

        window.run(exercise["id"])
        assert "not done yet" in window.run(check["id"])

        window.write(exercise["id"], source(solution).replace(RIGHT, WRONG))
        window.run(exercise["id"])
        assert MESSAGE in window.run(check["id"])
        expect(window.shown().filter(has_text=MESSAGE).first).to_be_visible()

        window.write(exercise["id"], source(solution))
        window.run(exercise["id"])
        assert f"✓ {EXERCISE}" in window.run(check["id"])
        expect(window.shown().filter(has_text=f"✓ {EXERCISE}").first).to_be_visible()
        progress = f"1 of {len(lab_of(EXERCISE).keys)} done"
        expect(window.shown().filter(has_text=progress).first).to_be_visible()
        started = window.run(before[0]["id"])  # like after a restart
        assert f"{progress}: ✓ A sampler that shards, ○" in started


def unfold(hint: Locator) -> None:
    """Click until the hint is open: scrolling renders text again, which folds it."""
    for _ in range(10):
        hint.locator("summary").click()
        with contextlib.suppress(AssertionError):
            return expect(hint).to_have_attribute("open", "")
    raise AssertionError("the hint stays folded")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_hints_are_folded_until_they_are_clicked(chromium: Browser, jupyterlab: LabServer) -> None:
    lab = cells(jupyterlab.root / "labs" / f"{LAB}.ipynb")
    with_hints = [cell for cell in lab if source(cell).count("<details") > 1]
    assert with_hints
    with chromium.new_context() as context:
        window = LabWindow(context.new_page(), jupyterlab, f"labs/{LAB}.ipynb")
        for cell in with_hints:
            text = source(cell)
            hints = window.rendered(cell["id"]).locator("details")
            expect(hints).to_have_count(text.count("<details"), timeout=OPEN_MS)
            for i in range(hints.count()):
                inside = hints.nth(i).locator("> :not(summary)")
                expect(inside.first).to_be_hidden()
                unfold(hints.nth(i))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_interactive_figures_show_without_a_network(
    chromium: Browser, jupyterlab: LabServer
) -> None:
    text = """\
from parlab import plots
figure = plots.figure("Ranks wait", x="ranks", y="time (s)")
figure.add_scatter(x=[1, 2, 4], y=[1.0, 2.0, 4.0], **plots.line("idle"))
plots.show(figure)"""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text, id="figure")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, jupyterlab.root / "figure.ipynb")
    requests: list[str] = []
    with chromium.new_context() as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        window = LabWindow(page, jupyterlab, "figure.ipynb")
        window.run("figure")
        expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible()
        expect(page.locator(".js-plotly-plot .gtitle", has_text="Ranks wait")).to_be_visible()
        page.evaluate(
            "() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
        )
        expect(page.locator("body[data-jp-theme-light=false]")).to_be_attached()
        expect(page.locator(".js-plotly-plot .svg-container")).to_have_css("height", "400px")
    local = (jupyterlab.url, "data:", "blob:")
    assert [address for address in requests if not address.startswith(local)] == []
