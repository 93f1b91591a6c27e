"""What pip is told on this machine, for uv, which does not read it: indexes, wheels at hand, proxy.

Who has set PIP_EXTRA_INDEX_URL, or a pip.conf, gets from uv what pip would install.
"""

import ast
import os
import subprocess
from collections.abc import Mapping, Sequence

# Of pip's sections, each overrules those before it.
_SECTIONS = ("global", "install", ":env:")
# pip's name of what may have several values, and uv's option for each of them.
_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraints",
}
_VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
}
_YES = {"1", "true", "yes", "on", "y", "t"}


def read(pip: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings, by their names in a pip.conf, of the pip that the command `pip` starts."""
    command = [*pip, "config", "list"]
    listed = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", errors="replace"
    ).stdout
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][key] = ast.literal_eval(value)
    return {key: value for section in _SECTIONS for key, value in found[section].items()}


def for_uv(settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The same settings as options of `uv pip install`, and as variables of its environment."""
    # As pip: the best version of all places, and what the system trusts.
    options = ["--index-strategy", "unsafe-best-match", "--system-certs"]
    for key, option in _OPTIONS.items():
        options += [word for value in settings.get(key, "").split() for word in (option, value)]
    if settings.get("no-index", "").lower() in _YES:
        options.append("--no-index")
    if settings.get("keyring-provider") in ("import", "subprocess"):
        options += ["--keyring-provider", "subprocess"]
    variables = {
        variable: settings[key]
        for key, names in _VARIABLES.items()
        if key in settings
        for variable in names
    }
    return options, variables
