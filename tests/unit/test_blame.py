"""The line of user code that raised: found in the worker, carried to the driver as text, shown everywhere."""

from __future__ import annotations

import importlib.util
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.restoring import harness
from tests.unit.test_web_rest import client_of, get
from tests.unit.webjob import EVIL, JOB, UID, make_job

from cairn.api.publishing import failure_facts
from cairn.errors import CairnError, EpochFailedError, StateTypeError, UserFunctionError, from_traceback
from cairn.model.descriptors import ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import EpochContext
from cairn.runtime import blame
from cairn.runtime.simple import explained
from cairn.storage.filesystem import LocalFileSystem
from cairn.view.journal import Journal
from cairn.view.words import first_line

HELPER = """
import json

def check(value):
    return inner(value)

def inner(value):
    if value == 13:
        raise ValueError("unlucky \\x1b[31m number\\n\\nsecond line\\n    at a place that Java might name")
    return json.loads("[" if value == 14 else "1")
"""


def module_of(folder: Path) -> Any:
    path = folder / "helpers.py"
    path.write_text(HELPER)
    spec = importlib.util.spec_from_file_location("helpers", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Checks(KeyedProcessFunction):
    def __init__(self, check: Callable[[int], Any]) -> None:
        self.check = check

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n == 15:
            self.total.update("text")
        self.check(value.n)
        yield (value.key, "")


def failure(folder: Path, number: int, **more: Any) -> CairnError:
    with harness(Checks(module_of(folder).check), folder / "job", **more) as job:
        job.push(("a", number))
        with pytest.raises(CairnError) as caught:
            job.run_epoch()
    return caught.value


def carried(error: CairnError) -> CairnError:
    """As it comes to the driver: Spark cuts the cause off and puts its own lines behind."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__, chain=False))
    told = from_traceback(f"org.apache.spark.SparkException: Job aborted\n{text} SQLSTATE: 38000\n\tat org.apache.X(Y)")
    assert told is not None
    return told


def test_the_innermost_line_of_user_code_is_named(tmp_path: Path) -> None:
    error = failure(tmp_path, 13)
    line = HELPER.splitlines().index('        raise ValueError("unlucky \\x1b[31m number\\n\\nsecond line\\n'
                                     '    at a place that Java might name")') + 1  # fmt: skip
    assert isinstance(error, UserFunctionError)
    assert f"({tmp_path}/helpers.py, line {line}, in inner)" in error.message
    assert "ValueError: unlucky" in error.message
    assert "second line" not in error.message  # the rest is in the traceback
    told = carried(error)
    assert isinstance(told, UserFunctionError)
    assert told.message == error.message
    assert told.facts["file"] == str(tmp_path / "helpers.py")
    assert (told.facts["line"], told.facts["function"], told.facts["exception"]) == (line, "inner", "ValueError")
    assert (told.facts["uid"], told.facts["epoch"]) == ("tested", 0)
    whole = told.facts["traceback"]
    assert "in process_element" in whole
    assert "in check" in whole
    assert whole.endswith("Java might name")
    assert "runtime/operator.py" not in whole  # what led into user code is left out


def test_a_library_that_user_code_calls_is_not_blamed(tmp_path: Path) -> None:
    error = failure(tmp_path, 14)
    assert "JSONDecodeError" in error.message
    assert f"{tmp_path}/helpers.py, line" in error.message
    assert "in inner" in error.message
    assert "json/decoder.py" in carried(error).facts["traceback"]


def test_an_error_of_cairn_in_user_code_names_the_line_too(tmp_path: Path) -> None:
    error = failure(tmp_path, 15)
    assert isinstance(error, StateTypeError)
    assert f"({__file__}, line " in error.message
    assert "in Checks.process_element)" in error.message
    assert carried(error).facts["function"] == "Checks.process_element"


def test_data_is_left_out_where_it_must_not_be_shown(tmp_path: Path) -> None:
    error = failure(tmp_path, 13, show_values=False)
    told = carried(error)
    for text in (error.message, told.message, told.facts["traceback"], json.dumps(told.facts)):
        assert "unlucky \x1b" not in text
        assert "second line\n" not in text
    assert "raised ValueError (" in told.message
    assert told.facts["traceback"].endswith("ValueError")
    assert told.facts["function"] == "inner"
    assert "cause" not in told.facts


def test_a_job_that_is_installed_like_a_library_is_found() -> None:
    root = next(iter(blame._libraries()))
    frames = [
        ("/opt/spark/python/pyspark/worker.py", 1, "main"), (f"{root}orders/job.py", 5, "process_element"),
        (f"{root}orders/rules.py", 7, "rule"), (f"{root}numpy/core.py", 9, "add"),
    ]  # fmt: skip
    assert blame.culprit(frames) == (f"{root}orders/rules.py", 7, "rule")
    assert blame.culprit(frames[:1]) is None
    assert blame.culprit([]) is None


def test_map_and_its_like_are_explained_alike() -> None:
    def poor(value: Any) -> Any:
        return 1 / value

    context = EpochContext("", "", "job", "", 1, 0, 0, 0, show_values=True)
    try:
        poor(0)
    except ZeroDivisionError as error:
        told = carried(explained("halve", "map()", context, error))
    assert f"map() raised ZeroDivisionError: division by zero ({__file__}, line " in told.message
    assert told.facts["uid"] == "halve"


def test_a_note_that_was_cut_off_costs_the_facts_only() -> None:
    told = from_traceback('cairn.errors.UserFunctionError: [user-function] it broke.\ncairn-facts: {"line": 3, "tra')
    assert told is not None
    assert told.message == "it broke."
    assert "line" not in told.facts


def test_spark_text_stands_for_the_traceback_where_there_is_none() -> None:
    error = EpochFailedError("it failed")
    error.__cause__ = RuntimeError("java.lang.Secret\n" + "x" * 20_000)
    assert failure_facts(error, True)["traceback"].startswith("RuntimeError: java.lang.Secret")
    assert len(failure_facts(error, True)["traceback"]) <= 8000
    assert failure_facts(error, False) == {}


def test_page_and_rest_show_the_line_and_fold_the_rest(tmp_path: Path) -> None:
    error = failure(tmp_path, 13)
    folder = make_job(tmp_path / "jobs", ended="")
    facts = {**failure_facts(error, True), "uid": UID, "subtask": 1}
    Journal(LocalFileSystem(str(folder))).add(7, "failed", f"{error.message}\n{EVIL}", code=error.code, **facts)
    web = client_of(tmp_path / "jobs")
    told = get(web, f"/jobs/{JOB}/exceptions")["exceptionHistory"]["entries"][0]
    assert told["exceptionName"] == "ValueError"
    assert told["taskName"] == "Totals (2/2)"
    assert told["location"]["function"] == "inner"
    assert "in process_element" in told["stacktrace"]
    assert told["timestamp"] > 0
    page = web.get(f"/jobs/{JOB}/exceptions").text
    assert "helpers.py:" in page
    assert "<details" in page
    assert "<script>alert" not in page
    assert page.index("unlucky") < page.index("<pre>")


def test_the_first_line_of_a_long_text_is_short() -> None:
    assert first_line("\n  one \ntwo") == "one"
    assert first_line("") == ""
    assert len(first_line("x" * 1000)) == 300
