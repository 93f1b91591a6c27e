"""The addresses in `site.yml` become buttons and settings. A wrong address gets a helpful line."""

from pathlib import Path

import pytest
import yaml

from parlab.runtime.paths import ROOT
from parlab_staff.book.notebooks import lab_page
from parlab_staff.book.site import Site, read_site, with_site

FULL = Site(
    address="https://owner.github.io/parlab",
    repository="https://github.com/owner/parlab",
    branch="trunk",
    jupyterhub="https://hub.example.edu/course",
    binder="https://mybinder.org",
)
NOTEBOOK = {"cells": [{"cell_type": "markdown", "metadata": {}, "source": "# Lab"}], "metadata": {}}


def settings(root: Path, text: str) -> Path:
    (root / "site.yml").write_text(text)
    return root


def config() -> dict:
    return yaml.safe_load((ROOT / "_config.yml").read_text())


def test_the_course_itself_names_no_address() -> None:
    assert read_site(ROOT, {}) == Site(binder="https://mybinder.org")


def test_nothing_is_added_without_addresses() -> None:
    assert with_site(config(), Site()) == config()


def test_a_variable_fills_in_what_is_empty(tmp_path: Path) -> None:
    variables = {
        "PARLAB_SITE_ADDRESS": "https://owner.github.io/parlab/",
        "PARLAB_SITE_JUPYTERHUB": "https://other.example.edu",
        "PARLAB_SITE_BRANCH": "trunk",
    }
    root = settings(tmp_path, "address:\njupyterhub: https://hub.example.edu\n")
    site = read_site(root, variables)
    assert site == Site(
        address="https://owner.github.io/parlab",
        jupyterhub="https://hub.example.edu",
        branch="trunk",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("address: owner.github.io/parlab", r"site\.yml: address is 'owner.*https://OWNER"),
        ("address: https://", r"address is 'https:'"),
        ("address: 'https://a b.example'", "leave it empty, or write"),
        ("address: https://host:port/", "leave it empty, or write"),
        ("repository: https://github.com/owner", r"https://github\.com/OWNER/parlab"),
        ("repository: git@github.com:owner/parlab.git", r"https://github\.com/OWNER/parlab"),
        ("jupyterhub: hub", r"https://hub\.example\.edu"),
        ("branch: 'a b'", "write main"),
        ("adress: https://owner.github.io/parlab", "known: address, repository, branch"),
        ("- address", "known: address, repository, branch"),
        ("address: [", "site.yml: write lines such as"),
    ],
)
def test_a_malformed_address_gets_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        read_site(settings(tmp_path, text), {})
    assert "\n" not in str(raised.value)


def test_a_malformed_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^PARLAB_SITE_ADDRESS: address is 'here'"):
        read_site(settings(tmp_path, "address:"), {"PARLAB_SITE_ADDRESS": "here"})


def test_labs_open_where_they_run() -> None:
    assert FULL.launchers("01_mpi") == {
        "JupyterHub": "https://hub.example.edu/course/hub/user-redirect/lab/tree/labs/01_mpi.ipynb",
        "Binder": "https://mybinder.org/v2/gh/owner/parlab/trunk?urlpath=lab/tree/labs/01_mpi.ipynb",
    }
    gitlab = Site(repository="https://gitlab.com/owner/parlab", binder="https://mybinder.org")
    assert "/v2/gl/owner%2Fparlab/main?" in gitlab.launchers("01_mpi")["Binder"]
    assert Site(binder="https://mybinder.org").launchers("01_mpi") == {}


def test_a_lab_has_a_button_for_each_place_and_for_the_download() -> None:
    full = lab_page(NOTEBOOK, "01_mpi", FULL)["cells"][0]["source"]
    assert full.count('class="sd-btn') == 3
    assert "Open in JupyterHub" in full and "Open in Binder" in full
    plain = lab_page(NOTEBOOK, "01_mpi", Site())["cells"][0]["source"]
    assert plain.count('class="sd-btn') == 1
    assert 'href="../_sources/labs/01_mpi.ipynb" download>Download the notebook' in plain


def test_students_get_no_link_to_the_repository() -> None:
    site = FULL.for_students()
    assert list(site.launchers("01_mpi")) == ["JupyterHub"]
    assert "repository_url" not in str(with_site(config(), site))
