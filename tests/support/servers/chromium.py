"""Chromium for tests: the one that is installed, or Debian's package."""

from __future__ import annotations

import shutil

from tests.support.servers import apt
from tests.support.servers.cache import NotAvailableError

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The program; installed where it is missing."""
    found = _installed()
    if found is None:
        apt.install("chromium")
        found = _installed()
    if found is None:
        raise NotAvailableError(f"the package chromium is installed, but none of {', '.join(_NAMES)} is on the PATH")
    return found


def _installed() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)
