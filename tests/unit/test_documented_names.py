"""The modules and names that the documentation mentions exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "cairn"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULE = re.compile(r"`([a-z][a-z_0-9/]*\.py)`")
NAMED = re.compile(r"`([a-z][a-z_0-9/]*\.py)`,? \(?`([A-Za-z_][A-Za-z_0-9.]*)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = {name for name in MODULE.findall(page.read_text()) if "/" in name}
    assert [name for name in sorted(named) if not any((base / name).is_file() for base in (ROOT, PACKAGE))] == []


def test_every_name_of_the_architecture_page_is_defined_where_it_says() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().replace("\n   ", "")
    missing = [
        f"{module}: {name}"
        for module, name in NAMED.findall(text)
        if name.split(".")[-1] not in _definitions(PACKAGE / module)
    ]
    assert missing == []


def _definitions(path: Path) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}
