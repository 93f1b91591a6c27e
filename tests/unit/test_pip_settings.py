"""uv uses the user's settings of pip for package indexes, so that both choose the same version.

No registry is asked: this test creates the package, folders, and a server for it.
"""

import functools
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from parlab.setup import pip_settings
from tests.book.browser.conftest import Silent

UV = Path(sys.executable).with_name("uv")
PIP = [sys.executable, "-m", "pip"]


def wheel(version: str, folder: Path) -> None:
    """Create a wheel of the package `thing`, which is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"thing-{version}.dist-info"
    with zipfile.ZipFile(folder / f"thing-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")


def index(folder: Path, version: str) -> None:
    """Create a package index in a folder."""
    pages = folder / "thing"
    wheel(version, pages)
    links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in pages.glob("*.whl"))
    (pages / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two indexes and a folder of wheels with one build each, like torch's for CPU and CUDA."""
    root = tmp_path_factory.mktemp("places")
    index(root / "usual", "1.0")
    index(root / "other", "1.0+cpu")
    index(root / "newer", "1.5")
    wheel("1.0+here", root / "wheels")
    handler = functools.partial(Silent, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        served = f"http://127.0.0.1:{server.server_port}"
        names = ("usual", "other", "newer")
        yield {name: f"{served}/{name}/" for name in names} | {"wheels": str(root / "wheels")}
        server.shutdown()


def chosen(command: list[str], environment: dict[str, str]) -> str:
    """Return the version of `thing` that a dry run of this command would install."""
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"(?:Would install |\+ )thing[-=]+(1\.[\w.+]+)", ran.stdout + ran.stderr)
    assert found, ran.stdout + ran.stderr
    return found[1]


USUAL = "[global]\nindex-url = {usual}"


@pytest.mark.parametrize(
    "wanted, config, variables, expected",
    [
        ("thing", USUAL, {}, "1.0"),
        ("thing==1.0", USUAL, {"PIP_EXTRA_INDEX_URL": "{other}"}, "1.0+cpu"),
        ("thing", USUAL, {"PIP_EXTRA_INDEX_URL": "{other} {newer}"}, "1.5"),
        ("thing==1.0", USUAL, {"PIP_FIND_LINKS": "{wheels}"}, "1.0+here"),
        ("thing", "", {"PIP_FIND_LINKS": "{wheels}", "PIP_NO_INDEX": "1"}, "1.0+here"),
        ("thing", USUAL, {"PIP_INDEX_URL": "{newer}"}, "1.5"),
        ("thing==1.0", USUAL + "\nfind-links = {wheels}", {}, "1.0+here"),
        ("thing", USUAL + "\n[install]\nextra-index-url =\n  {other}\n  {newer}", {}, "1.5"),
    ],
)
def test_uv_chooses_what_pip_chooses(
    wanted: str,
    config: str,
    variables: dict[str, str],
    expected: str,
    places: dict[str, str],
    tmp_path: Path,
) -> None:
    """`config` is a pip.conf."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("PIP_", "UV_"))}
    (tmp_path / "pip.conf").write_text(config.format(**places))
    environment["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
    environment |= {name: value.format(**places) for name, value in variables.items()}

    by_pip = [*PIP, "install", "--dry-run", "--ignore-installed", "--no-cache-dir", wanted]
    assert chosen(by_pip, environment) == expected
    options, more = pip_settings.for_uv(pip_settings.read(PIP, environment))
    by_uv = [str(UV), "pip", "install", "--python", sys.executable, "--dry-run", "--no-cache"]
    assert chosen([*by_uv, *options, wanted], environment | more) == expected


def test_other_settings_are_passed_on_too() -> None:
    options, variables = pip_settings.for_uv(
        {"cert": "/ca.pem", "proxy": "http://proxy:8080", "timeout": "60", "trusted-host": "a b"}
    )
    assert variables == {
        "SSL_CERT_FILE": "/ca.pem",
        "HTTP_PROXY": "http://proxy:8080",
        "HTTPS_PROXY": "http://proxy:8080",
        "UV_HTTP_TIMEOUT": "60",
    }
    assert options[-4:] == ["--allow-insecure-host", "a", "--allow-insecure-host", "b"]
