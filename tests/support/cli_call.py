"""Commands of cairn, run in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from cairn.cli.exit_codes import exit_code
from cairn.cli.main import app
from cairn.errors import CairnError


def call(*args: str) -> tuple[int, str]:
    """Exit code and output, as `main` would end."""
    result = CliRunner().invoke(app, list(args))
    if isinstance(result.exception, CairnError):
        return int(exit_code(result.exception)), result.exception.message
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def answer(*args: str, code: int = 0) -> Any:
    found, text = call(*args, "--json")
    assert found == code, text
    return json.loads(text)
