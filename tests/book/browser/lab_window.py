"""A notebook in a JupyterLab window: edits cells, runs them, and reads their outputs."""

from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.book.browser.lab_server import LabServer

OPEN_MS = 120_000
# A lab's rank cell may take 60 s, and longer on a busy machine.
RUN_MS = 180_000

# JupyterLab's application object is available on the page. `panel` is the active notebook.
_PANEL = "const app = window.jupyterapp; const panel = app.shell.currentWidget;"
_CELL = _PANEL + "const cell = panel.content.widgets.find((c) => c.model.id === id);"


class LabWindow:
    def __init__(self, page: Page, server: LabServer, notebook: str) -> None:
        self.page = page
        page.set_default_timeout(OPEN_MS)
        page.goto(f"{server.url}lab/tree/{notebook}?token={server.token}")
        page.wait_for_function(
            f"""() => {{
                {_PANEL.replace("window.jupyterapp", "window.jupyterapp || {shell: {}}")}
                return panel?.content?.widgets?.length > 0
                    && panel.sessionContext?.session?.kernel?.status === "idle";
            }}"""
        )
        # Until then, JupyterLab may still activate another cell.
        page.evaluate("async () => { await window.jupyterapp.restored; }")

    def write(self, cell: str, text: str) -> None:
        """Replace the text of the cell with this id, by keyboard."""
        self._select(cell)
        self.page.keyboard.press("Enter")
        editor = self.page.locator(".jp-Notebook .jp-Cell.jp-mod-active .cm-content")
        expect(editor).to_be_focused()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Escape")
        self.page.wait_for_function(
            f"([id, text]) => {{ {_CELL} return cell.model.sharedModel.source === text; }}",
            arg=[cell, text],
        )

    def run(self, cell: str) -> str:
        """Run the cell with this id by keyboard. Return the text of its outputs."""
        self._select(cell)
        before = self._count(cell)
        self.page.keyboard.press("ControlOrMeta+Enter")
        self.page.wait_for_function(
            f"""([id, before]) => {{ {_CELL}
                return cell.model.executionCount !== null
                    && cell.model.executionCount !== before
                    && cell.model.executionState !== "running"
                    && panel.sessionContext.session.kernel.status === "idle"; }}""",
            arg=[cell, before],
            timeout=RUN_MS,
        )
        return "\n".join(self._texts(output) for output in self._outputs(cell))

    def rendered(self, cell: str) -> Locator:
        """Return the text of the Markdown cell with this id, after scrolling to it."""
        self._select(cell)
        return self.page.locator(f".jp-Notebook .jp-Cell[data-id='{cell}'] .myst")

    def shown(self) -> Locator:
        """Return the visible outputs of the selected cell."""
        return self.page.locator(".jp-Notebook .jp-Cell.jp-mod-active .jp-OutputArea-output")

    def _select(self, cell: str) -> None:
        self.page.evaluate(
            f"""async (id) => {{ {_CELL}
                cell.node.dataset.id = id;
                panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
                panel.content.deselectAll();
                panel.content.mode = "command";
                await panel.content.scrollToCell(cell);
                panel.content.node.focus();
                panel.content.activate(); }}""",
            cell,
        )

    def _count(self, cell: str) -> int | None:
        return self.page.evaluate(f"(id) => {{ {_CELL} return cell.model.executionCount; }}", cell)

    def _outputs(self, cell: str) -> list[dict[str, Any]]:
        return self.page.evaluate(
            f"(id) => {{ {_CELL} return cell.model.outputs.toJSON(); }}", cell
        )

    @staticmethod
    def _texts(output: dict[str, Any]) -> str:
        if output["output_type"] == "stream":
            return "".join(output["text"])
        if output["output_type"] == "error":
            return "\n".join([output["ename"], output["evalue"], *output["traceback"]])
        return "".join(output["data"].get("text/plain", ""))
