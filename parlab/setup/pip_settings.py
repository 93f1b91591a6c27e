"""Passes this machine's pip settings (indexes, wheels, proxy) to uv, which does not read them.

If you have set PIP_EXTRA_INDEX_URL or have a pip.conf, uv installs the same packages as pip would.
"""

import ast
import os
import subprocess
from collections.abc import Mapping, Sequence

# The sections of pip's settings. Each one overrides those before it.
_SECTIONS = ("global", "install", ":env:")
# pip's names of settings with several values, and uv's option for each value.
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
    """Return the settings of the pip that the command `pip` starts, by their names in pip.conf."""
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
    """Return the settings as options of `uv pip install`, and as environment variables for it."""
    # Like pip, choose the best version from all indexes, and trust the system's certificates.
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
