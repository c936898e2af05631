"""What is asked of the processes around a job: of the Python of the workers before it starts, of the JVM after."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cairn import InvalidInputError
from cairn.spark.failure_causes import lost_jvm
from cairn.spark.worker_check import check_workers


def session(python: str, master: str = "local[2]", shipped: tuple[str, ...] = ()) -> Any:
    context = SimpleNamespace(pythonExec=python, master=master, _python_includes=list(shipped))
    return SimpleNamespace(sparkContext=context)


def script(folder: Path, text: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_without_cairn_is_refused_with_the_remedy(tmp_path: Path) -> None:
    lacking = script(tmp_path, "echo \"ModuleNotFoundError: No module named 'msgspec'\" >&2; exit 1")
    with pytest.raises(
        InvalidInputError, match=r"python3, which cannot run cairn: .*'msgspec'.* PYSPARK_PYTHON="
    ) as told:
        check_workers(session(lacking))
    assert sys.executable in told.value.message
    check_workers(session(lacking, "spark://host:7077"))  # nobody can tell from here
    check_workers(session(lacking, shipped=("packages.zip",)))


def test_a_python_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no such program"):
        check_workers(session(str(tmp_path / "none")))


def test_pythons_that_will_do(tmp_path: Path) -> None:
    check_workers(session(sys.executable))
    check_workers(session(script(tmp_path, f'exec {sys.executable} "$@"')))


class _Query:
    def __init__(self, answers: bool) -> None:
        self._answers = answers

    @property
    def isActive(self) -> bool:
        if not self._answers:
            raise ConnectionRefusedError(111, "Connection refused")
        return False


def test_a_lost_connection_is_a_lost_jvm_only_if_that_does_not_answer() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    told = lost_jvm("wide", _Query(answers=False), refused)
    assert told is not None
    assert "Spark's JVM has ended" in told.message
    assert lost_jvm("wide", _Query(answers=True), refused) is None  # a sink's own database, for example
    assert lost_jvm("wide", _Query(answers=False), ValueError("no")) is None
    assert lost_jvm("wide", _Query(answers=False), None) is None
