"""Side outputs and bare values without Spark: tags, tagged batches, and the errors for what does not fit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cairn import CheckpointedFunction, InvalidInputError, OutputTag, ProcessFunction, Types, UserFunctionError
from cairn.model.manifest import EpochContext
from cairn.model.output_tags import check_tag
from cairn.runtime.map_functions import SimpleSpec, run_simple
from cairn.runtime.tagged_outputs import SideSpec, output_builder
from cairn.testing import ProcessHarness
from cairn.testing.keyed_harness import arrow_schema

MAIN = arrow_schema("user string, total bigint")
LATE = OutputTag("late", "user string, ts bigint")
SUMS = OutputTag("sums", Types.LONG())
SIDES = tuple(SideSpec(tag.tag_id, arrow_schema(tag.ddl), tag.bare) for tag in (LATE, SUMS))
CONTEXT = EpochContext("", "", "job", "", 1, 0, 0, 0, show_values=True, parameters={"p": "q"})


def test_a_tag_is_its_name_and_travels() -> None:
    assert OutputTag("late", "a int") == OutputTag("late", "b string")
    assert OutputTag("late", "a int") != OutputTag("other", "a int")
    copy = pickle.loads(pickle.dumps(SUMS))
    assert (copy, copy.ddl, copy.bare) == (SUMS, "`value` bigint", True)
    assert OutputTag("t", Types.TUPLE([Types.INT(), Types.STRING()])).ddl == "`f0` int, `f1` string"
    assert OutputTag("t", "array<int>").bare
    assert not OutputTag("t", "struct<a:int,b:string>").bare


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("",), "not empty"), ((3,), "not empty"), (("late",), "needs a type"), (("late", "nonsense"), "nonsense"),
     (("late", Types.PICKLED_BYTE_ARRAY()), "pickled values cannot be columns"), (("late", 5), "not int")],
)  # fmt: skip
def test_tags_that_are_none(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        OutputTag(*arguments)


def test_a_name_is_no_tag() -> None:
    """It has no type, and the pair of both would pass for a row of the main output."""
    with pytest.raises(InvalidInputError, match="by its OutputTag, not by 'late'"):
        check_tag("late")
    check_tag(LATE)


def tagged() -> Any:
    return output_builder("op", MAIN, False, True, SIDES, 3)


def test_outputs_are_sorted_into_structs() -> None:
    batch = tagged().build([("a", 1), (LATE, ("b", 5)), (SUMS, 7), ("c", 2), (SUMS, 8)])
    assert batch.schema.names == ["__cairn_tag", "__cairn_from", "o0", "o1", "o2"]
    assert set(batch.column(1).to_pylist()) == {3}
    assert [(r["__cairn_tag"], r[f"o{r['__cairn_tag']}"]) for r in batch.to_pylist()] == [
        (0, {"user": "a", "total": 1}), (0, {"user": "c", "total": 2}), (1, {"user": "b", "ts": 5}),
        (2, {"value": 7}), (2, {"value": 8}),
    ]  # fmt: skip
    for row in batch.to_pylist():
        others = [row[f"o{n}"] for n in range(3) if n != row["__cairn_tag"]]
        assert others == [None, None]


def test_wrong_type_in_a_side_output_names_it() -> None:
    with pytest.raises(UserFunctionError, match=r"operator 'op', side output 'late', emitted .'b', 'x'.*column 'ts'"):
        tagged().build([(LATE, ("b", "x"))])
    with pytest.raises(UserFunctionError, match=r"side output 'sums', emitted .*column 'value' is int64"):
        tagged().build([("a", 1), (SUMS, "seven")])


def test_a_tag_that_nobody_reads() -> None:
    other = OutputTag("other", "int")
    with pytest.raises(UserFunctionError, match=r"'other', which the job does not read .it reads late, sums"):
        tagged().build([(other, 1)])
    with pytest.raises(UserFunctionError, match=r"'other', which the job does not read .it reads none"):
        output_builder("op", MAIN, False, False, (), 0).build([("a", 1), (other, 1)])
    bare = output_builder("op", arrow_schema("value bigint"), True, False, (), 0)
    with pytest.raises(UserFunctionError, match=r"'other', which the job does not read"):
        bare.build([(other, 1)])


def test_bare_values_are_never_taken_for_rows() -> None:
    lists = output_builder("op", arrow_schema("value array<int>"), True, False, (), 0)
    assert lists.build([[1, 2], [3]]).to_pylist() == [{"value": [1, 2]}, {"value": [3]}]
    numbers = output_builder("op", arrow_schema("value bigint"), True, True, (), 0)
    assert numbers.build([1, 2]).column(2).to_pylist() == [{"value": 1}, {"value": 2}]


def simple(kind: str, function: Any, output: str, rows: list[tuple[Any, ...]], **more: Any) -> list[Any]:
    columns = "user string, total bigint"
    schema = arrow_schema(columns)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema
    )
    spec = SimpleSpec("m", kind, function, ("user", "total"), arrow_schema(output), **more)
    return [tuple(row.values()) for made in run_simple(spec, [batch], CONTEXT, 0, 0) for row in made.to_pylist()]


def test_map_filter_and_flat_map() -> None:
    rows = [("a", 1), ("b", 2)]
    assert simple("map", lambda r: r.total * 2, "value bigint", rows, bare_out=True) == [(2,), (4,)]
    assert simple("map", lambda r: (r.user + "!", r.total), "user string, total bigint", rows)[0] == ("a!", 1)
    assert simple("filter", lambda r: r.total > 1, "user string, total bigint", rows) == [("b", 2)]

    def twice(row: Any) -> Iterator[Any]:
        if row.user == "a":
            yield row.user
            yield row.user * 2

    assert simple("flat_map", twice, "value string", rows, bare_out=True) == [("a",), ("aa",)]
    assert simple("flat_map", lambda r: None, "value string", rows, bare_out=True) == []
    (first, *_) = simple("filter", lambda r: True, "user string, total bigint", rows, tagged=True)
    assert first == (0, 0, {"user": "a", "total": 1})


def test_keys_that_a_function_computes() -> None:
    rows = [("a", 1), ("b", 2)]
    columns = "user string, total bigint, `__cairn_key_0` string"
    assert simple("key", lambda r: r.user * 2, columns, rows) == [("a", 1, "aa"), ("b", 2, "bb")]
    with pytest.raises(UserFunctionError, match="a key is not of the type string that key_by was told"):
        simple("key", lambda r: r.total, columns, rows)
    with pytest.raises(UserFunctionError, match=r"a key is not of the type int64 .*: 0\.5 would not be kept as it is"):
        simple("key", lambda r: r.total / 2, "user string, total bigint, `__cairn_key_0` bigint", rows)


def test_errors_of_simple_functions_name_them() -> None:
    rows = [("a", 0)]
    with pytest.raises(UserFunctionError, match=r"operator 'm', epoch 0: map\(\) raised ZeroDivisionError: integer"):
        simple("map", lambda r: 1 // r.total, "value bigint", rows)
    with pytest.raises(UserFunctionError, match=r"flat_map\(\) returned a str; it must yield values"):
        simple("flat_map", lambda r: r.user, "value string", rows)
    with pytest.raises(UserFunctionError, match=r"'m' emitted .*column 'value' is int64"):
        simple("map", lambda r: "x", "value bigint", rows, bare_out=True)


class Flushing(ProcessFunction, CheckpointedFunction):
    """Tries to put something out when the rows of the epoch are out."""

    def __init__(self, where: str) -> None:
        self.where = where

    def initialize_state(self, context: Any) -> None:
        self.ctx: Any = None

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        self.ctx = ctx
        ctx.output(SUMS, value)
        yield value

    def _flush(self, where: str) -> None:
        if self.where == where and self.ctx is not None:
            self.ctx.output(SUMS, 100)

    def snapshot_state(self, context: Any) -> None:
        self._flush("snapshot_state")

    def close(self) -> None:
        self._flush("close")


class YieldsInClose(Flushing):
    def close(self) -> Iterator[Any]:  # type: ignore[override]
        yield 1


@pytest.mark.parametrize(
    ("function", "where"),
    [(Flushing("snapshot_state"), "snapshot_state"), (Flushing("close"), "close"), (YieldsInClose(""), "close")],
)
def test_output_after_the_last_row_is_refused(function: Flushing, where: str) -> None:
    with ProcessHarness(function, "bigint", "bigint", side_outputs=[SUMS]) as harness:
        harness.push(1)
        with pytest.raises(UserFunctionError, match=rf"operator 'tested': {where}\(\) cannot put anything out"):
            harness.run_epoch()
        assert (harness.epoch, harness.side_outputs) == (-1, {"sums": []})
        harness.spec = replace(harness.spec, function=Flushing(""))
        harness.restart()
        assert harness.run_epoch() == [1]
        assert harness.side_outputs == {"sums": [1]}
