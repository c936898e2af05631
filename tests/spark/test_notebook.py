"""The tutorial notebook runs from top to bottom, and its displays say what they should."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cairn.web import driver_server

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "tutorial.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """What a notebook does with a cell: run it, and give the value of a last line that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return (
        eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if isinstance(last, ast.Expr) else None
    )


@pytest.mark.spark
def test_the_tutorial_notebook(spark: SparkSession) -> None:
    names: dict[str, Any] = {"spark": spark, "__name__": "__main__"}
    shown = []
    try:
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], "the notebook is kept without outputs"
                value = run_cell("".join(cell["source"]), names)
                # Jupyter asks for the display right after the cell.
                shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else value)
    finally:
        if "job" in names:
            names["job"].cancel()
        driver_server.stop_all()
    job, checkpoints, savepoint, ada, later = [value for value in shown if value is not None]
    assert "Tutorial" in job
    assert "RUNNING" in job
    assert "http://127.0.0.1:" in job
    assert "COMPLETED" in checkpoints
    assert "bigint" in savepoint
    assert (ada, later) == (8, 108)
