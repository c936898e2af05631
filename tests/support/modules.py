"""The modules of the package as tests look at them: paths, names and imports."""

from __future__ import annotations

import ast
from pathlib import Path

import cairn

PACKAGE = Path(cairn.__file__).parent


def modules() -> list[tuple[str, Path]]:
    """Every module with its path below the package."""
    return [(str(path.relative_to(PACKAGE)), path) for path in sorted(PACKAGE.rglob("*.py"))]


def imports_of(path: Path) -> set[str]:
    """The modules that a module imports, wherever it does so."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.count(".") == 0:
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                imported.add(node.module)
    return imported
