"""The addresses of the published book, read from `site.yml`, and how the build uses them."""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

FILE = "site.yml"
_VARIABLE = "PARLAB_SITE_"
_REPOSITORY = re.compile(
    r"https://[\w.-]*(?:github[\w.-]*|gitlab[\w.-]*(?:/(?!-/)[\w.-]+)*)/[\w.-]+/[\w.-]+"
)  # On GitLab, a project can be in a group within a group.
_BRANCH = re.compile(r"[\w./-]+")
_FORMS = {
    "address": "https://OWNER.github.io/parlab/",
    "repository": "https://github.com/OWNER/parlab, on GitHub or GitLab",
    "branch": "main",
    "jupyterhub": "https://hub.example.edu",
    "binder": "https://mybinder.org",
}
_NOT_FOUND = """\
<h1>Page not found</h1>
<p>This address has no page. The <a href="{path}book/index.html">first page</a> has a map of all
chapters. You can also <a href="{path}search.html">search the course</a>.</p>
"""


@dataclass(frozen=True)
class Site:
    """The addresses in `site.yml`, without a slash at the end. Empty means not configured."""

    address: str = ""
    repository: str = ""
    branch: str = "main"
    jupyterhub: str = ""
    binder: str = ""

    def for_students(self) -> "Site":
        """Return the addresses without the repository, because it has the solutions."""
        return dataclasses.replace(self, repository="")

    def launchers(self, lab: str) -> dict[str, str]:
        """Return the address at which each configured service opens a lab, by service name."""
        notebook, found = f"lab/tree/labs/{lab}.ipynb", {}
        if self.jupyterhub:
            found["JupyterHub"] = f"{self.jupyterhub}/hub/user-redirect/{notebook}"
        if self.repository and self.binder:
            host, _, project = self.repository.removeprefix("https://").partition("/")
            # Binder wants the slash in a GitLab project's name escaped.
            at = f"gl/{project.replace('/', '%2F')}" if "gitlab" in host else f"gh/{project}"
            found["Binder"] = f"{self.binder}/v2/{at}/{self.branch}?urlpath={notebook}"
        return found


def read_site(root: Path, environment: Mapping[str, str] = os.environ) -> Site:
    """Read `site.yml` in `root`. Variables such as PARLAB_SITE_ADDRESS replace its empty values.

    Raises ValueError, with what to do, for an unknown name or a malformed address.
    """
    written = _written(root / FILE)
    if not isinstance(written, dict) or set(written) - set(_FORMS):
        raise ValueError(f"{FILE}: write lines such as `address: …`; known: {', '.join(_FORMS)}")
    values = {}
    for name, example in _FORMS.items():
        variable = f"{_VARIABLE}{name.upper()}"
        value = str(written.get(name) or environment.get(variable) or "").strip().rstrip("/")
        if value and not _well_formed(name, value):
            where = FILE if written.get(name) else variable
            raise ValueError(f"{where}: {name} is {value!r}; leave it empty, or write {example}")
        values[name] = value
    return Site(**values | {"branch": values["branch"] or "main"})


def _written(file: Path) -> Any:
    """Return the content of the file; {} if it has none, and None if it is not YAML."""
    if not file.exists():
        return {}
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError:
        return None


def _well_formed(name: str, value: str) -> bool:
    if name == "branch":
        return _BRANCH.fullmatch(value) is not None
    if name == "repository":
        return _REPOSITORY.fullmatch(value) is not None
    try:
        url = urlsplit(value)
        _ = url.port  # raises ValueError for a port that is not a number
    except ValueError:
        return False
    secure_or_local = url.scheme in ("https", "http") and bool(url.hostname)
    return secure_or_local and not (url.query or url.fragment) and not re.search(r"[\s\"<>]", value)


def with_site(config: dict[str, Any], site: Site) -> dict[str, Any]:
    """Return the content of `_config.yml` with the features that the site's addresses enable."""
    sphinx = dict(config["sphinx"]["config"])
    if site.address:
        sphinx |= _published(site.address, sphinx["extensions"])
    if site.repository:
        buttons = {f"use_{kind}_button": True for kind in ("repository", "source", "issues")}
        sphinx["html_theme_options"] = sphinx["html_theme_options"] | {
            **buttons,
            "use_edit_page_button": True,
            "repository_url": site.repository,
            "repository_branch": site.branch,
        }
    return config | {"sphinx": config["sphinx"] | {"config": sphinx}}


def _published(address: str, extensions: list[str]) -> dict[str, Any]:
    path = urlsplit(address).path + "/"
    return {
        "extensions": ["sphinx_sitemap", "sphinxext.opengraph", "notfound.extension", *extensions],
        "html_baseurl": f"{address}/",
        "sitemap_url_scheme": "{link}",
        "sitemap_excludes": ["404.html", "genindex.html", "search.html"],
        "ogp_site_url": f"{address}/",
        "ogp_site_name": "parlab: train large models in parallel",
        "ogp_image": "_static/social.png",
        "ogp_image_alt": "A training step on four ranks, which send gradients while they compute.",
        "ogp_social_cards": {"enable": False},  # the same picture for all pages
        "ogp_custom_meta_tags": ['<meta name="twitter:card" content="summary_large_image" />'],
        # A server shows this page at any address, so its links begin at the server's root.
        "notfound_urls_prefix": path,
        "notfound_context": {
            "title": "Page not found",
            "body": _NOT_FOUND.format(path=path),
        },
    }
