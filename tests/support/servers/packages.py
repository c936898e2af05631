"""Distributions and empty environments for tests, made by uv, be it the machine's or the one of `make setup`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.support.servers.cache import NotAvailableError

ROOT = Path(__file__).parents[3]
_PLACES = (".uv/bin/uv", ".uv/pip/bin/uv")
# Variables by which a program of another environment would be led back into this one.
LEADING_BACK = (
    "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "CAIRN_CONFIG",
)  # fmt: skip


def outside() -> dict[str, str]:
    """The environment variables of a program that runs outside of this checkout and its `.venv`."""
    return {name: value for name, value in os.environ.items() if name not in LEADING_BACK}


def require_packages(folder: Path) -> None:
    """`NotAvailableError` where not even packages that are surely there can be had."""
    place = folder / "probe"
    environment(place)
    wanted = ["hatchling", f"pyspark=={metadata.version('pyspark')}"]
    try:
        uv("pip", "install", "--dry-run", "--python", str(place / "bin" / "python"), *wanted, cwd=folder)
    except AssertionError as error:
        raise NotAvailableError(f"packages cannot be had here: {error}") from error


def uv(*args: str, cwd: Path) -> str:
    """What a call of uv prints. As `make setup` does, it also looks where pip is configured to look."""
    program = shutil.which("uv") or next((str(ROOT / place) for place in _PLACES if (ROOT / place).exists()), None)
    if program is None:
        raise NotAvailableError("uv is not installed; `make setup` brings it")
    variables = outside()
    for ours, pips in (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("UV_FIND_LINKS", "PIP_FIND_LINKS")):
        if pips in variables:
            variables.setdefault(ours, variables[pips])
    done = subprocess.run([program, *args], cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"uv {' '.join(args)} fails: {done.stderr[-800:]}"
    return done.stdout


def build(target: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of this checkout; the wheel is built from the latter."""
    uv("build", "--quiet", "--out-dir", str(target), str(ROOT), cwd=target)
    (wheel,), (source,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, source


def environment(target: Path, *requirements: str) -> Path:
    """The `bin` of a new environment that has these requirements and nothing else."""
    uv("venv", "--quiet", "--no-project", "--python", sys.executable, str(target), cwd=target.parent)
    if requirements:
        uv("pip", "install", "--quiet", "--python", str(target / "bin" / "python"), *requirements, cwd=target.parent)
    return target / "bin"
