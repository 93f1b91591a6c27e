"""The labs where learners do them: in JupyterLab, in a browser."""

import ast
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, expect

from parlab.book import ROOT
from tests.browser.lab_server import lab_server
from tests.browser.lab_window import LabWindow

LAB = "02_data_parallel"
# Its first exercise, and a mistake that people make there.
EXERCISE = "sharded_sampler"
MISTAKE = ROOT / "tests" / "wrong_answers" / "data_parallel" / EXERCISE / "same_shard.py"


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text())["cells"]


def of(exercise: str, role: str, among: list[dict]) -> dict:
    """The cell of an exercise that has the role (a tag)."""
    return next(
        cell
        for cell in among
        if cell["metadata"].get("exercise") == exercise and role in cell["metadata"].get("tags", [])
    )


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.mark.timeout(900)
def test_a_learner_is_told_what_is_wrong_and_then_that_it_is_right(
    chromium: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "labs"
    shutil.copytree(ROOT / "labs", folder)
    lab = cells(folder / f"{LAB}.ipynb")
    exercise, check = of(EXERCISE, "exercise", lab), of(EXERCISE, "check", lab)
    before = [cell for cell in lab[: lab.index(exercise)] if cell["cell_type"] == "code"]
    solution = of(EXERCISE, "exercise", cells(ROOT / "solutions" / f"{LAB}.ipynb"))
    mistake = MISTAKE.read_text()
    message = (ast.get_docstring(ast.parse(mistake)) or "").splitlines()[0]

    with lab_server(folder, tmp_path / "jupyter") as server, chromium.new_context() as context:
        window = LabWindow(context.new_page(), server, f"{LAB}.ipynb")
        for cell in before:
            printed = window.run(cell["id"])
            assert "Traceback" not in printed, printed

        window.run(exercise["id"])
        assert "not done yet" in window.run(check["id"])

        window.write(exercise["id"], f"%%px\n{mistake}")
        window.run(exercise["id"])
        assert message in window.run(check["id"])
        expect(window.shown().filter(has_text=message).first).to_be_visible()

        window.write(exercise["id"], source(solution))
        window.run(exercise["id"])
        assert f"✓ {EXERCISE}" in window.run(check["id"])
        expect(window.shown().filter(has_text=f"✓ {EXERCISE}").first).to_be_visible()


@pytest.mark.timeout(600)
def test_interactive_figures_show_without_a_network(chromium: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    text = """\
from parlab import plots
figure = plots.figure("Ranks wait", x="ranks", y="time (s)")
figure.add_scatter(x=[1, 2, 4], y=[1.0, 2.0, 4.0], **plots.line("idle"))
plots.show(figure)"""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text, id="figure")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, folder / "figure.ipynb")
    asked: list[str] = []
    with lab_server(folder, tmp_path / "jupyter") as server, chromium.new_context() as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        window = LabWindow(page, server, "figure.ipynb")
        window.run("figure")
        expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible()
        expect(page.locator(".js-plotly-plot .gtitle", has_text="Ranks wait")).to_be_visible()
        page.evaluate(
            "() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
        )
        expect(page.locator("body[data-jp-theme-light=false]")).to_be_attached()
        expect(page.locator(".js-plotly-plot .svg-container")).to_have_css("height", "400px")
    local = (server.url, "data:", "blob:")
    assert [address for address in asked if not address.startswith(local)] == []
