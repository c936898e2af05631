"""The line of user code that raised: found in the worker, carried to the driver as text, shown everywhere."""

from __future__ import annotations

import importlib.util
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.rest_client import client_of, get
from tests.support.restore_lab import harness
from tests.support.web_job import EVIL, JOB, UID, make_job

from cairn.errors import (
    CairnError,
    CorruptFileError,
    EpochFailedError,
    InvalidInputError,
    StateTypeError,
    UserFunctionError,
    from_traceback,
)
from cairn.job.publisher import failure_facts
from cairn.model.ddl import parse_type
from cairn.model.descriptors import ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import EpochContext
from cairn.model.process_functions import KeyedCoProcessFunction
from cairn.quantities import first_line
from cairn.runtime import user_code_location
from cairn.runtime.map_functions import SimpleSpec, run_simple
from cairn.runtime.user_errors import explained
from cairn.state.codec import KeyCodec
from cairn.storage.filesystem import LocalFileSystem
from cairn.testing.input_harness import TwoInputHarness
from cairn.testing.local_cluster import Shuffle
from cairn.view.journal import Journal

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
    assert "runtime/keyed_operator.py" not in whole  # what led into user code is left out


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


def test_the_row_that_a_function_failed_on_is_shown(tmp_path: Path) -> None:
    error = failure(tmp_path, 13)
    assert "The row: Row(key='a', n=13)." in error.message
    assert carried(error).message == error.message
    (tmp_path / "hidden").mkdir()
    assert "The row" not in failure(tmp_path / "hidden", 13, show_values=False).message


def test_a_row_is_shown_in_one_line_and_not_at_length(tmp_path: Path) -> None:
    class Fails(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> list[Any]:
            raise KeyError(1)

    with harness(Fails(), tmp_path, columns="key string, n bigint, text string") as job:
        job.push(("a", 1, "\x1b[31m\n\u202e" + "x" * 10_000))
        with pytest.raises(UserFunctionError) as caught:
            job.run_epoch()
    shown = caught.value.message.partition("The row: ")[2].partition(". The last committed")[0]
    assert shown.startswith(r"Row(key='a', n=1, text='\x1b[31m\n\u202exxx")
    assert shown.endswith("…")
    assert len(shown) <= 501


def test_functions_without_a_key_show_the_row_too() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    output = pa.schema([("a", pa.int64()), ("b", pa.string())])

    def fails(value: Any) -> Any:
        if value.a == 2:
            raise LookupError("no")
        return value

    for kind in ("map", "filter", "flat_map", "key"):
        spec = SimpleSpec("plain", kind, fails, ("a", "b"), output)
        for shown in (True, False):
            context = EpochContext("", "", "", "", 1, 7, 0, 0, show_values=shown)
            with pytest.raises(UserFunctionError, match=r"epoch 7.* raised LookupError") as caught:
                list(run_simple(spec, [rows], context, 0, 0))
            assert ("The row: Row(a=2, b='y')." in caught.value.message) == shown


def test_both_inputs_of_a_function_show_the_row(tmp_path: Path) -> None:
    class Fails(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> list[Any]:
            raise LookupError("one")

        def process_element2(self, value: Any, ctx: Any) -> list[Any]:
            raise LookupError("two")

    for number in (1, 2):
        with TwoInputHarness(
            Fails(), ("k", "k"), ("k string, n bigint",) * 2, "k string", state_dir=tmp_path / str(number)
        ) as job:
            (job.push1 if number == 1 else job.push2)(("a", 5))
            with pytest.raises(UserFunctionError) as caught:
                job.run_epoch()
        assert f"key 'a': process_element{number}() raised LookupError" in caught.value.message
        assert "The row: Row(k='a', n=5)." in caught.value.message


# Text that is not UTF-8. Spark keeps any bytes in a string column: `cast(X'ff' as string)`.


@pytest.fixture
def odd_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ÿ in the rows of a harness comes to the task as the single byte 0xff."""
    split = Shuffle.split

    def changed(self: Shuffle, batch: pa.RecordBatch, *more: int) -> Any:
        columns = [
            pc.replace_substring(c.cast(pa.binary()), pattern="ÿ".encode(), replacement=b"\xff").view(pa.string())
            if pa.types.is_string(c.type)
            else c
            for c in batch.columns
        ]
        return split(self, pa.RecordBatch.from_arrays(columns, schema=batch.schema), *more)

    monkeypatch.setattr(Shuffle, "split", changed)


@pytest.mark.usefixtures("odd_bytes")
@pytest.mark.parametrize("key_by", ["key", ["key", "n"]])
def test_a_key_that_is_not_utf8_is_refused_by_name(tmp_path: Path, key_by: Any) -> None:
    with harness(Checks(lambda value: value), tmp_path, key_by=key_by) as job:
        job.push(("good", 1), ("caf\xff", 2))
        with pytest.raises(InvalidInputError, match=r"operator 'tested', subtask \d, epoch 0") as caught:
            job.run_epoch()
    told = caught.value.message
    assert "key column 'key'" in told
    assert r"b'caf\xff'" in told
    assert "make_valid_utf8" in told
    assert isinstance(carried(caught.value), InvalidInputError)


@pytest.mark.usefixtures("odd_bytes")
def test_a_text_column_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    with harness(Checks(lambda value: value), tmp_path, columns="key string, n bigint, city string") as job:
        job.push(("good", 1, "Ürümqi"), ("good", 2, "M\xff"))
        with pytest.raises(InvalidInputError, match=r"operator 'tested', subtask \d, epoch 0") as caught:
            job.run_epoch()
    told = caught.value.message
    assert "column 'city'" in told
    assert r"b'M\xff'" in told
    assert "make_valid_utf8" in told


def test_a_text_column_of_a_plain_stream_that_is_not_utf8_is_refused_by_name() -> None:
    text = pa.array([b"x", b"\xff\xfe"]).view(pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), text], names=["a", "b"])
    spec = SimpleSpec("plain", "map", lambda value: value, ("a", "b"), rows.schema)
    with pytest.raises(InvalidInputError, match=r"operator 'plain', epoch 7: column 'b' .*b'\\xff\\xfe'.*make_valid"):
        list(run_simple(spec, [rows], EpochContext("", "", "", "", 1, 7, 0, 0), 0, 0))


def test_a_stored_key_that_is_not_utf8_is_named() -> None:
    with pytest.raises(CorruptFileError, match=r"key column 'user'.*b'\\xff'"):
        KeyCodec([("user", parse_type("string"))]).decode(b"\xff")


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
    root = next(iter(user_code_location._libraries()))
    frames = [
        ("/opt/spark/python/pyspark/worker.py", 1, "main"), (f"{root}orders/job.py", 5, "process_element"),
        (f"{root}orders/rules.py", 7, "rule"), (f"{root}numpy/core.py", 9, "add"),
    ]  # fmt: skip
    assert user_code_location.culprit(frames) == (f"{root}orders/rules.py", 7, "rule")
    assert user_code_location.culprit(frames[:1]) is None
    assert user_code_location.culprit([]) is None


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
