"""A Firefox without a window, driven by WebDriver BiDi: Playwright drives only its own Firefox."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

from tests.conftest import wait_until

ANSWERS_S = 120
NAMES = ("firefox-esr", "firefox")
# Prevent Firefox's own requests for updates, captive portals, and telemetry.
PREFERENCES = {
    "app.normandy.enabled": False,
    "app.update.auto": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}


def find_firefox() -> str | None:
    """Return the path of the system's Firefox."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Firefox:
    """One page in Firefox. Every expression is JavaScript that runs in that page."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(
            f"{address}/session", timeout=ANSWERS_S, suppress_origin=True
        )
        self._sent = 0
        self._call("session.new", capabilities={})
        tree = self._call("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]

    def open(self, url: str) -> None:
        self._call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def value(self, expression: str) -> Any:
        """Return the value of an expression: a string, a number, or what a promise resolves to."""
        got = self._call(
            "script.evaluate",
            expression=expression,
            target={"context": self._context},
            awaitPromise=True,
            userActivation=True,
        )
        if got["type"] != "success":
            raise BidiError(got["exceptionDetails"]["text"])
        return got["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until the expression is true. It counts as false while the page loads again."""
        wait_until(lambda: self._is_true(expression), ANSWERS_S, expression)

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.value(f"Boolean({expression})"))
        except BidiError:
            return False

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") != self._sent:
                continue
            if answer["type"] == "error":
                raise BidiError(answer)
            return answer["result"]


class BidiError(Exception):
    """Firefox could not do this, or the page raised an error."""


@contextmanager
def firefox(folder: Path) -> Iterator[Firefox]:
    """Start Firefox with a new profile in `folder`, and end it afterwards."""
    profile = folder / "profile"
    profile.mkdir()
    lines = [f'user_pref("{name}", {json.dumps(value)});\n' for name, value in PREFERENCES.items()]
    (profile / "user.js").write_text("".join(lines), encoding="utf-8")
    program = find_firefox()
    assert program, "Firefox was not found"
    command = [program, "--headless", "--no-remote", "--profile", str(profile)]
    with (
        (folder / "log").open("w+", encoding="utf-8") as log,
        subprocess.Popen(
            [*command, "--remote-debugging-port=0", "about:blank"],
            env=os.environ | {"HOME": str(folder)},
            stderr=subprocess.PIPE,
            stdout=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"WebDriver BiDi listening on (ws://\S+)", line):
                    break
            else:
                raise AssertionError("Firefox ended before it could be driven")
            yield Firefox(found[1])
        finally:
            process.terminate()
