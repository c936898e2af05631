"""Client libraries that only some jobs need: loaded on first use, with an error that says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cairn.errors import MissingPackageError


def load(module: str, extra: str, needed_by: str) -> Any:
    """A module of an optional package; `MissingPackageError` with the command that installs it where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{needed_by} needs the package '{module.split('.')[0]}', which cannot be imported here ({error}). "
            f"Install it on the driver: pip install 'cairn-streaming[{extra}]'",
            extra=extra,
        ) from error
