"""Imports point one way: a layer may use the layers it is allowed, and heavy libraries stay in few named places."""

from __future__ import annotations

import ast
from pathlib import Path

import cairn

PACKAGE = Path(cairn.__file__).parent
ALLOWED = {
    "text": set(),
    "logs": {"text"},
    "errors": set(),
    "config": {"errors"},
    "model": {"errors", "config"},
    "storage": {"errors", "config", "model"},
    "state": {"errors", "config", "model", "storage"},
    "runtime": {"errors", "config", "model", "storage", "state"},
    "coordinator": {"errors", "config", "model", "storage"},
    "connectors": {"errors", "config", "model", "storage"},
    "view": {"errors", "config", "model", "storage", "state", "runtime", "coordinator"},
    "web": {"errors", "config", "model", "storage", "state", "runtime", "coordinator", "view"},
    "api": {"errors", "config", "model", "storage", "state", "runtime", "coordinator", "connectors", "view", "web"},
    "testing": {"errors", "config", "model", "storage", "state", "runtime", "coordinator"},
    "testing/simulation": {
        "errors",
        "config",
        "model",
        "storage",
        "state",
        "runtime",
        "coordinator",
        "connectors",
        "view",
        "web",
        "api",
        "testing",
    },
    "cli": {
        "errors",
        "config",
        "model",
        "storage",
        "state",
        "runtime",
        "coordinator",
        "connectors",
        "view",
        "web",
        "api",
    },
}
EVERYWHERE = {"text", "logs"}
"""Of use to every layer that lies above them."""
HEAVY = {
    "pyspark": ("api/", "cli/", "connectors/"),
    "psycopg": ("connectors/jdbc.py",),
    "confluent_kafka": ("connectors/kafka.py",),
    "deltalake": ("connectors/delta.py",),
    "lmdb": ("state/lmdb_backend.py", "cli/doctor.py"),
    "rocksdict": ("state/rocksdb_backend.py", "cli/doctor.py"),
    "fastapi": ("web/",),
    "starlette": ("web/",),
    "uvicorn": ("web/",),
    "jinja2": ("web/",),
    "prometheus_client": ("web/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "pytest": ("testing/",),
}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == "cairn":
                found |= {f"cairn.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def modules() -> list[tuple[str, Path]]:
    return [(str(path.relative_to(PACKAGE)), path) for path in sorted(PACKAGE.rglob("*.py"))]


def test_layers_import_only_what_lies_below_them() -> None:
    wrong = []
    for name, path in modules():
        layer = name.split("/")[0].removesuffix(".py")
        if name.startswith("testing/simulation/"):  # it runs whole drivers
            layer = "testing/simulation"
        if layer not in ALLOWED:
            continue
        for imported in imports_of(path):
            parts = imported.split(".")
            inside = parts[0] == "cairn" and len(parts) > 1 and parts[1] in ALLOWED
            if inside and parts[1] not in ALLOWED[layer] | {layer} | (set() if layer in EVERYWHERE else EVERYWHERE):
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_heavy_libraries_are_imported_in_their_places_only() -> None:
    wrong = []
    for name, path in modules():
        for imported in imports_of(path):
            places = HEAVY.get(imported.split(".")[0])
            if places is not None and not name.startswith(places):
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_public_names_are_these_and_all_can_be_had() -> None:
    for name in cairn.__all__:
        assert getattr(cairn, name) is not None
    assert sorted(cairn.__all__) == list(cairn.__all__)
    assert {"StreamExecutionEnvironment", "KeyedProcessFunction", "ValueStateDescriptor", "FileSink"} <= set(
        cairn.__all__
    )
